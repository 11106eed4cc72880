"""Trainers for nnU-Net v2 (`nnunetv2` 2.8 or newer), which it finds by the environment variable `nnUNet_extTrainer`.

nnU-Net searches its own package for a trainer's class name and then the folders which that variable lists. It imports
every module it meets there, with the folder at the head of `sys.path`: the folder holds trainers alone, in files that
bear their names, as nnU-Net's own do.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
"""The value of `nnUNet_extTrainer`."""
