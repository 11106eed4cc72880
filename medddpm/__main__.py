"""`python -m medddpm`, as torchrun needs it."""

from medddpm.cli.main import run

run()
