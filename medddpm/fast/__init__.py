"""The fast path: `accelerate` and `restore`, and a rule for each class of module it knows."""
