"""Times, memory and errors of the bench's record: any network's training step, Med-DDPM's forward pass and samples."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.tools import ORDINARY
from study.bench import tables
from study.bench.sentences import exact, tool
from study.bench.settings import BENCH_SETTINGS
from study.numbers.texts import in_words
from study.words import cudnn_release

BEST = "best"
"""As a setting: the fastest of the ordinary tools."""

_SECONDS = {"hours": 3600, "days": 86400}


@cache
def recorded(root: Path) -> dict[str, pd.DataFrame]:
    """Returns every card's record (schema `BENCH`); it is read once."""
    return tables.recorded(root)


def step_ms(root: Path, card: str, setting: str, network: str = tables.OURS, places: str = "") -> str:
    """Returns a training step's time, to three digits at least or to so many places: "41.4"."""
    return _written(_steps(root, card, network)[_named(root, card, network, setting)], places)


def times(root: Path, card: str, slower: str, faster: str, network: str = tables.OURS, places: str = "2") -> str:
    """Returns a training step's time under one setting divided by that under another: "1.95"."""
    took = _steps(root, card, network)
    slow, fast = (took[_named(root, card, network, setting)] for setting in (slower, faster))
    return _written(slow / fast, places)


def best_tool(root: Path, card: str, network: str = tables.OURS) -> str:
    """Returns the fastest ordinary tool: "BF16 autocast with `torch.compile` in its mode `max-autotune`"."""
    return tool(BENCH_SETTINGS[fastest_tool(root, card, network)])


def fastest_tool(root: Path, card: str, network: str = tables.OURS) -> str:
    """Returns the fastest ordinary tool's setting: "max-autotune"."""
    return _named(root, card, network, BEST)


def forward_ms(root: Path, card: str, setting: str, places: str = "") -> str:
    """Returns the time of a forward pass of Med-DDPM: "12.8"."""
    return _written(tables.by_setting(recorded(root)[card])["forward_ms"][setting], places)


def sample_s(root: Path, card: str, setting: str, places: str) -> str:
    """Returns how long Med-DDPM samples a volume: "3.3"."""
    return _written(tables.by_setting(recorded(root)[card])["sample_s"][setting], places)


def peak_gib(root: Path, card: str, measure: str, setting: str) -> str:
    """Returns the memory of a step or a forward pass of Med-DDPM: "6.5"."""
    return f"{tables.rows_of(recorded(root)[card], tables.OURS, measure)['peak_gib'][setting]:.1f}"


def output_error(root: Path, card: str, setting: str, places: str) -> str:
    """Returns how far Med-DDPM's output lies from BASE's, in percent: "1.3"."""
    return _written(100 * tables.by_setting(recorded(root)[card])["error_output"][setting], places)


def ordinary_tools(root: Path) -> str:
    """Returns the number of ordinary tools: "14"."""
    return str(len(ORDINARY))


def untimed_tools(root: Path, card: str) -> str:
    """Returns for how many of the ordinary tools a card has no step of Med-DDPM: "8"."""
    return str(_steps(root, card, tables.OURS).reindex(list(ORDINARY)).isna().sum())


def apart(root: Path, card: str, one: str, other: str, unit: str, network: str = tables.OURS) -> str:
    """Returns how many hours or days lie between two settings' steps: "two", "16"."""
    return in_words(_seconds_apart(root, card, one, other, network) / _SECONDS[unit])


def version(root: Path, name: str) -> str:
    """Returns the version of torch, cuda, cudnn or triton under which every card's record was measured: "2.11".

    Raises:
        BadInput: there is more than one.
    """
    versions = {text for record in recorded(root).values() for text in record[name].dropna().astype(str)}
    if len(versions) != 1:
        raise BadInput(name, f"measured under {', '.join(sorted(versions))}", "name each record's version on the page")
    (text,) = versions
    if name == "cudnn":
        return cudnn_release(text)
    return ".".join(text.split(".")[:2])


def _steps(root: Path, card: str, network: str) -> pd.Series[float]:
    """Returns a network's training steps by setting, ms."""
    return tables.rows_of(recorded(root)[card], network, "step")["median_ms"]


def _seconds_apart(root: Path, card: str, one: str, other: str, network: str) -> float:
    when = pd.to_datetime(tables.rows_of(recorded(root)[card], network, "step")["date"])
    return abs((when[one] - when[other]).total_seconds())


def _named(root: Path, card: str, network: str, setting: str) -> str:
    """Returns a setting's name; of `BEST` the fastest ordinary tool's."""
    return str(_steps(root, card, network).reindex(list(ORDINARY)).idxmin()) if setting == BEST else setting


def _written(value: float, places: str) -> str:
    return f"{value:.{places}f}" if places else exact(value)
