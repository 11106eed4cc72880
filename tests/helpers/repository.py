"""The paths of the repository and of the folders that may lie beside it."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"  # the specification and a real case; tests that need them are skipped without
