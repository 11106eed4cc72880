"""Training: the loop, its run folder, its progress, and the release of what it trained."""
