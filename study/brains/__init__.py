"""Judges synthetic brains as a reader would: their tissues, surfaces, contrasts and copies, against held-out heads."""
