"""The site's table of cards: the NVIDIA GPUs that each kernel runs on, and those it was tested on."""

from __future__ import annotations

from dataclasses import dataclass

from medddpm.fast.kernels import dispatch

Capability = tuple[int, int]


@dataclass(frozen=True)
class Generation:
    """Cards of neighbouring compute capabilities.

    Args:
        name: as the table calls them.
        capabilities: those that there are, in order; the generation reaches to the next one's first.
        tested: the cards, by their folders in figures/records, on which the kernels' tests were run.
    """

    name: str
    capabilities: tuple[Capability, ...]
    tested: tuple[str, ...] = ()


GENERATIONS = (
    Generation("Volta, Turing and older", ((5, 0), (6, 0), (7, 0), (7, 5))),
    Generation("Ampere, Ada", ((8, 0), (8, 6), (8, 7), (8, 9))),
    Generation("Hopper", ((9, 0),), tested=("H100", "H200")),
    Generation("Blackwell, data centre and Jetson", ((10, 0), (10, 3), (11, 0))),
    Generation("Blackwell, GeForce RTX and GB10", ((12, 0), (12, 1))),
)
"""In order; what comes after the last belongs to it."""


def generation(capability: Capability) -> Generation:
    """The generation of a card with this compute capability."""
    return next((g for g in reversed(GENERATIONS) if g.capabilities[0] <= capability), GENERATIONS[0])


def untested(capability: Capability) -> str:
    """Says that the kernels were never tested on such a card; empty if they were, or do not run there."""
    if capability < dispatch.OLDEST or generation(capability).tested:
        return ""
    return f"compute capability {capability[0]}.{capability[1]}: the kernels were never tested on such a card"


def table() -> str:
    """The table in Markdown, a row a generation."""
    lines = ["| compute capability | cards | Triton kernels | 3³ convolutions | tested on |", "|---|---|---|---|---|"]
    for each in GENERATIONS:
        first = each.capabilities[0]
        runs = first >= dispatch.OLDEST
        ours = dispatch.HOPPER in each.capabilities
        cells = (
            _span(each.capabilities) if each is not GENERATIONS[0] else f"below {_dotted(dispatch.OLDEST)}",
            each.name,
            "yes" if runs else "no: the model is left as it is",
            "ours, in Gluon, a part of Triton" if ours else "cuDNN's",
            ", ".join(each.tested) or ("never tested" if runs else "–"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


def _span(capabilities: tuple[Capability, ...]) -> str:
    first, last = capabilities[0], capabilities[-1]
    return _dotted(first) if first == last else f"{_dotted(first)} to {_dotted(last)}"
