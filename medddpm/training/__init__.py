"""Training: the loop, its run folder, its progress, and the release of the trained model."""
