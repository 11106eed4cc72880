"""Answers imports of the former place of `medddpm.fast.clients`; goes with version 0.2."""

raise ImportError("medddpm.clients is now medddpm.fast.clients: change the import", name=__name__)
