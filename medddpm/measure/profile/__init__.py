"""Profiles a program's step: Nsight Compute and plain traces, what they print as tables, kernel families, windows."""
