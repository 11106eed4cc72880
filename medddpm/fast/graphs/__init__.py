"""CUDA graphs: what may be captured, one pass captured, copies of tensors, nested containers."""
