"""Volumes: read, checked, brought to the grid of a model, and back."""
