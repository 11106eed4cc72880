"""A reader's own training step or forward pass under every tool: jobs of `medddpm.measure.harness`, and their table."""
