"""The commands of `python -m study`."""
