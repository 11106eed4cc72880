"""Profiles any program with PyTorch: hooks tell its steps and phases, a trace and Nsight Compute record them."""
