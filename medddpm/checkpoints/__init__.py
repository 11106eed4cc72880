"""Weights on disk: checkpoints, released models and their cards, and the model that travels with the package."""
