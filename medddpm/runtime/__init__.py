"""Needed whatever a program computes: files, processes, reports, arguments, CUDA graphs."""
