"""CUDA kernels in Python (numba-cuda): each operator's simple version first, and what is faster beside it."""
