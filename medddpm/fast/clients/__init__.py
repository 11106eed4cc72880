"""The fast path inside other people's training programs; each of these is imported by that program alone."""
