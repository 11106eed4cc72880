"""The colour and the name of each setting of the bench (notebook 16)."""

from __future__ import annotations

from study.bench.settings import BENCH_SETTINGS
from study.figures.style import SETTING_COLOURS

# Settings that no other figure shows have the colour of their kind: Okabe & Ito's, and a light tone of FAST's.
ORDINARY_COLOUR, COMPILED_COLOUR, PARTLY_FAST_COLOUR = "#56B4E9", "#CC79A7", "#F0A27B"


def colour_of(setting: str) -> str:
    """Returns the colour of a setting of the bench: its own if every figure shows it, else that of its kind."""
    if setting in SETTING_COLOURS:
        return SETTING_COLOURS[setting]
    bench = BENCH_SETTINGS[setting]
    if bench.reader:
        return SETTING_COLOURS["FAST"]
    return PARTLY_FAST_COLOUR if bench.switches.fast else COMPILED_COLOUR if bench.compiled else ORDINARY_COLOUR


def label_of(setting: str) -> str:
    """Returns the name of a setting's row: what it changes, after its name if every figure shows it."""
    change = BENCH_SETTINGS[setting].change
    return f"{setting}: {change}" if setting in SETTING_COLOURS else change
