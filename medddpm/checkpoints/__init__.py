"""Weights on disk: checkpoints, released models and their cards, and the shipped model."""
