"""Times and profiles a program's step: tools to compare with, Nsight Compute, plain traces, tables of kernels."""
