"""The attack on every file that the project reads."""
