"""Section 3, the profiled run and its software (P050 to P061): ours beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from study.claims.verdicts import Finding

NO_WINDOW = Finding("configuration", "There is no record of a window. `site/add_your_card.md` says how to measure one.")


@dataclass(frozen=True)
class Window:
    """The profiled launches, and the length of the run.

    Args:
        gpu: the card.
        steps: of the run, as "25 steps"; None if its command does not say.
        first: the launch that the window begins at.
        launches: how many launches it has.
    """

    gpu: str
    steps: str | None
    first: int
    launches: int

    def measured_with(self, value: int) -> Finding:
        """Returns one of the window's numbers as a finding."""
        return Finding("configuration", f"The windows of the {self.gpu} were measured with this value.", str(value))


def our_default(value: int | None) -> Finding | None:
    """Returns a default of this package as a finding; None if it was not asked for."""
    if value is None:
        return None
    return Finding("configuration", "The default of this package's training and network.", str(value))


def our_version(version: str | None) -> Finding:
    """Returns a version of our software as a finding."""
    if version is None:
        return Finding("software", "No record of a GPU says it. `site/add_your_card.md` says how to measure one.")
    return Finding("software", "The book runs on current releases. Other versions may choose other kernels.", version)


def p050(window: Window | None) -> Finding:
    """Judges Section 3.2, all cards, profiling run: epochs = 25."""
    if window is None:
        return NO_WINDOW
    end = f"The window ends at launch {window.first + window.launches}, within the first step"
    reason = f"A run of that many steps is enough. {end}, and nothing after it is profiled."
    return Finding("configuration", reason, window.steps)


def p051(settings: Mapping[str, int]) -> Finding | None:
    """Judges Section 3.2, all cards, profiling run: batch size = 1."""
    return our_default(settings.get("batch size"))


def p052(settings: Mapping[str, int]) -> Finding | None:
    """Judges Section 3.2, all cards, profiling run: input size = 128."""
    return our_default(settings.get("input size"))


def p053(settings: Mapping[str, int]) -> Finding | None:
    """Judges Section 3.2, all cards, profiling run: depth size = 128."""
    return our_default(settings.get("depth size"))


def p054(settings: Mapping[str, int]) -> Finding | None:
    """Judges Section 3.2, all cards, profiling run: channels = 64."""
    return our_default(settings.get("channels"))


def p055(window: Window | None) -> Finding:
    """Judges Section 3.2, all cards, profiling run: launch-skip = 10."""
    return NO_WINDOW if window is None else window.measured_with(window.first)


def p056(window: Window | None) -> Finding:
    """Judges Section 3.2, all cards, profiling run: launch-count = 100."""
    return NO_WINDOW if window is None else window.measured_with(window.launches)


def p057(versions: Mapping[str, str]) -> Finding:
    """Judges Section 3.1, all cards, software: PyTorch = 2.0.1."""
    return our_version(versions.get("PyTorch"))


def p058(versions: Mapping[str, str]) -> Finding:
    """Judges Section 3.1, all cards, software: Python = 3.11.4."""
    return our_version(versions.get("Python"))


def p059(versions: Mapping[str, str]) -> Finding:
    """Judges Section 3.1, all cards, software: Nsight Compute = 2025.2.1."""
    return our_version(versions.get("Nsight Compute"))


def p060(versions: Mapping[str, str]) -> Finding:
    """Judges Section 3.1, all cards, software: CUDA Toolkit = 12.9."""
    return our_version(versions.get("CUDA Toolkit"))


def p061(versions: Mapping[str, str]) -> Finding:
    """Judges Section 3.1, all cards, software: cuDNN = 8.9.2."""
    return our_version(versions.get("cuDNN"))
