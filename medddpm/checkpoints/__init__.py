"""Weights on disk: checkpoints, released files and their cards, the model that travels with the package."""
