"""The command `medddpm`."""
