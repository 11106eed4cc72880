"""CUDA graphs of a network or of a whole training step, and what must be as it was before one is replayed."""
