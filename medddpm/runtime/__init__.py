"""What a program needs whatever it computes: files, processes, arguments, CUDA graphs."""
