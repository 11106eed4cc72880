"""Profiles of a training step by Nsight Compute, and the tables of kernels parsed from them."""
