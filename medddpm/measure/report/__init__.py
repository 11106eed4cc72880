"""Reads the folder of a profile: windows against the step, what bounds the step, and a page that tells it."""
