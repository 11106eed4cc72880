"""Volumes: reading, checking, resampling to a model's grid and back."""
