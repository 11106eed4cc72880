"""Judges the report's 75 numbers, and finds contradictions among them.

Arithmetic judges a number that follows from others of the report: a sum by its rows, a repeated number by its first
place, a ratio by its parts. A time on its RTX 3080 is at best a *proxy*, as another card's is for the paper. A time of
the whole program cannot be measured again, as the report does not give its numbers of images and steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from medddpm.measure.tables import read_table
from study.convnext.operators import OPERATORS
from study.convnext.tables import block_us, of_one_image, operator_seconds, times, transfer_us
from study.convnext.worker import STEPS
from study.records import schemas

FILE = Path("figures") / "records" / "paper" / "cuda_report.csv"
VERDICTS = "claims_cuda_report.csv"  # in figures/records
TABLES = ("Table I", "Table II", "Table III")
TOLERANCE = 0.01  # of a sum, whose rows have three digits or more
OPERATORS_OF = {
    "initial": "CPU, one thread",
    "conv2d tiled": "conv2d on the GPU",
    "conv2d tiled, layer_norm by warps": "conv2d and layer_norm on the GPU",
}
FIRST_PLACES = {  # ids of a number said again, and of where it is first said
    "C001": "C025", "C003": "C024", "C004": "C025", "C065": "C024", "C071": "C025", "C074": "C025",
    "C002": "C055", "C072": "C055", "C075": "C055", "C056": "C022", "C067": "C022", "C057": "C052", "C068": "C052",
    "C070": "C063",
}  # fmt: skip
NOT_SAID = f"The report does not say how many images and steps this is. Ours is {STEPS} evaluations for one image."


def reported(root: Path) -> pd.DataFrame:
    """Reads the report's numbers, one row a claim (schema `PAPER`), C001 to C075."""
    return read_table(root / FILE, schemas.PAPER)


def table_of(report: pd.DataFrame, name: str) -> dict[str, float]:
    """Returns a table's rows by subject, in its unit: in "Table I" to "Table III" operators and total, in seconds."""
    rows = report[report["figure"] == name]
    return dict(zip(rows["subject"].astype(str), rows["value"].astype(float), strict=True))


def sums(report: pd.DataFrame) -> pd.DataFrame:
    """Compares the totals of Tables I to III with the sums of their rows.

    Returns:
        index table; stated, sum (of its rows), missing (their difference) in seconds, share (missing of stated).
    """
    by_table = {}
    for name in TABLES:
        rows = table_of(report, name)
        added = sum(seconds for operator, seconds in rows.items() if operator != "total")
        missing = rows["total"] - added
        by_table[name] = {"stated": rows["total"], "sum": added, "missing": missing, "share": missing / rows["total"]}
    return pd.DataFrame.from_dict(by_table, orient="index").rename_axis("table")


def contradictions(report: pd.DataFrame) -> list[str]:
    """Lists the report's contradictions, each with its arithmetic."""
    first, second, third = (table_of(report, name) for name in TABLES)
    added: dict[Any, dict[str, float]] = sums(report).to_dict("index")  # type: ignore[assignment]
    parts = report[report["figure"] == "Table IV"].set_index("subject")["value"].astype(float)
    copies = parts["transfer to GPU"] + parts["transfer to CPU"]
    gap = parts["whole call"] - copies - parts["kernel"]
    same = [name for name in OPERATORS if second[name] == third[name] > 0]
    others = [name for name in OPERATORS if name not in ("layer_norm", "conv2d")]
    more = sum(third[name] - second[name] for name in others)
    drop = (second["total"] - third["total"]), (second["layer_norm"] - third["layer_norm"])
    fused = report.set_index("id")["value"].astype(str)
    gain = float(fused["C064"]) / float(fused["C063"])
    return [
        *(f"{name}: its rows add up to {row['sum']:.2f} s, and it states {row['stated']:.2f} s: {row['missing']:.2f} s "
          f"({row['share']:.0%}) are in no row." for name, row in added.items()),
        f"conv2d takes 0 s in Table II and {third['conv2d']:.1f} s in Table III, after a change to layer_norm alone; "
        f"Section V.A calls it \"effectively zero\". With Table III's value Table II would lack "
        f"{added['Table II']['missing'] - third['conv2d']:.1f} s, as Table III lacks "
        f"{added['Table III']['missing']:.1f} s: a 0 here is a row that was not recorded.",
        f"layer_norm, which the tiled convolution does not touch, is {second['layer_norm']:.2f} s in Table II and was "
        f"{first['layer_norm']:.2f} s in Table I; the text compares {first['layer_norm']:.2f} s with "
        f"{third['layer_norm']:.2f} s ({first['layer_norm'] / third['layer_norm']:.2f}×), the step before it is "
        f"{second['layer_norm']:.2f} s ({second['layer_norm'] / third['layer_norm']:.2f}×).",
        f"From Table II to Table III the total falls by {drop[0]:.2f} s and layer_norm by {drop[1]:.2f} s; all other "
        f"rows but conv2d differ by {more:+.2f} s, so {drop[0] - drop[1] + more:.2f} s "
        "of the gain belong to no row.",
        f"{', '.join(same)} have the same digits in Tables II and III: two runs do not repeat to a microsecond.",
        f"Table IV: {parts['transfer to GPU']:.6f} + {parts['kernel']:.6f} + {parts['transfer to CPU']:.6f} = "
        f"{copies + parts['kernel']:.6f} ms of {parts['whole call']:.6f} ms; {gap:.6f} ms are in no part. Transfers "
        f"are {copies / parts['whole call']:.0%} of the call, and {copies / (copies + parts['kernel']):.0%} of the "
        f"parts: not two-thirds. All but the kernel is {1 - parts['kernel'] / parts['whole call']:.0%}: two-thirds "
        "counts launches and allocations as transfers.",
        f"The abstract and the conclusion count layer fusion among what made {first['total']:.2f} s into "
        f"{third['total']:.2f} s. That is Table III's total, reached before fusion; fusion is measured in Table V "
        f"alone, one block: {gain:.0f}× a CPU, with no time of the unfused kernels beside it.",
    ]  # fmt: skip


def table_iv(report: pd.DataFrame, transfers: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Makes Table IV in µs: the report's, and each card's for one image, from pageable and from pinned memory.

    Args:
        report: from `reported`.
        transfers: card to its table of schema `TRANSFERS` of `schemas_convnext`.
    """
    stated = {name.removeprefix("transfer "): 1e3 * ms for name, ms in table_of(report, "Table IV").items()}
    columns = {"report": pd.Series({"whole" if name == "whole call" else name: us for name, us in stated.items()})}
    for card, table in transfers.items():
        for memory, rows in of_one_image(table).groupby("memory", sort=False):
            columns[f"{card}, {memory}"] = rows.set_index("what")["median_us"]
    return pd.DataFrame(columns).loc[["to GPU", "kernel", "to CPU", "whole"]]


def table_v(report: pd.DataFrame, kernels: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Makes Table V in µs: a block on a CPU and fused on a GPU, the report's and each card's, and their ratio.

    Args:
        report: from `reported`.
        kernels: card to its table of schema `KERNELS` of `schemas_convnext`.
    """
    rows = ["CPU, one thread", "CPU, all cores", "GPU, fused, launched", "GPU, fused, in a graph"]
    stated = table_of(report, "Table V")
    on_cpu, on_gpu = (1e6 * stated[f"ConvNeXt block on the {place}"] for place in ("CPU", "GPU"))
    columns = {"report": pd.Series({rows[0]: on_cpu, rows[2]: on_gpu})}
    for card, table in kernels.items():
        measured = times(table, "block", 1)
        processor, fused = measured["processor_us"], measured.reindex(["fused"]).iloc[0]
        ours = [processor.get("numba, one thread"), processor.get("numba, all cores")]
        columns[card] = pd.Series([*ours, fused["launched_us"], fused["graph_us"]], index=rows)
    wide = pd.DataFrame(columns).reindex(rows).astype(float)
    wide.loc["one thread / launched"] = wide.loc[rows[0]] / wide.loc[rows[2]]
    return wide


def verdicts(report: pd.DataFrame, root: Path) -> pd.DataFrame:
    """Judges each claim (schema `CLAIMS`); a time of another card is the newest record's, by `tables`."""
    values = report.set_index("id")["value"].astype(str)
    added = sums(report)
    rows = []
    for claim in report.to_dict("records"):
        name, place, subject = str(claim["id"]), claim["figure"], str(claim["subject"])
        if place in TABLES and subject == "total":
            rows.append(_by_arithmetic(claim, float(added["sum"][place]), "The sum of the table's rows."))
        elif name in FIRST_PLACES:
            first = FIRST_PLACES[name]
            rows.append(_by_arithmetic(claim, float(values[first]), f"{first}, where the report states it first."))
        elif name == "C066":
            rows.append(_by_arithmetic(claim, float(values["C054"]), "Table III's row has the same convolution."))
        elif claim["metric"] == "share of the whole call":
            whole, kernel = float(values["C058"]), float(values["C060"])
            copies = float(values["C059"]) + float(values["C061"])
            reason = (
                "Both transfers divided by the whole call, from Table IV. All but the kernel is "
                f"{1 - kernel / whole:.0%} of it, which fits."
            )
            rows.append(_by_arithmetic(claim, copies / whole, reason))
        elif claim["metric"] == "speedup":
            ratio = float(values["C025"]) / float(values["C055"])
            rows.append(
                _row(
                    claim,
                    f"{ratio:.4g}",
                    "arithmetic",
                    0.0,
                    ratio > float(str(claim["value"])),
                    "C025 divided by C055.",
                )
            )
        elif claim["section"] == "IV.A":
            rows.append(_open(claim, "setup", "The report's own setup. Nothing here runs on that card and software."))
        else:
            rows.append(_proxy(claim, root))
    return pd.DataFrame(rows, columns=list(schemas.CLAIMS.columns)).astype({"tolerance": "float64"})


Verdict = tuple[str, str, str | None, str, str | None, str | None, str | None, float | None, str, str]


def _by_arithmetic(claim: Mapping[Any, Any], computed: float, reason: str) -> Verdict:
    stated = float(str(claim["value"]))
    return _row(
        claim, f"{computed:.6g}", "arithmetic", TOLERANCE, abs(computed - stated) <= TOLERANCE * abs(stated), reason
    )


def _row(claim: Mapping[Any, Any], ours: str, view: str, tolerance: float, holds: bool, reason: str) -> Verdict:
    status = "reproduced" if holds else "differs"
    return (str(claim["id"]), str(claim["value"]), ours, view, None, None, None, tolerance, status, reason)


def _open(claim: Mapping[Any, Any], view: str, reason: str) -> Verdict:
    return (str(claim["id"]), str(claim["value"]), None, view, None, None, None, None, "not_measurable", reason)


def _proxy(claim: Mapping[Any, Any], root: Path) -> Verdict:
    """Returns the verdict on a time that only the report's machine could confirm, beside ours if there is a record."""
    place, subject = claim["figure"], str(claim["subject"])
    measured, reason = None, ""
    if place in TABLES:
        measured, reason = operator_seconds(root, OPERATORS_OF[str(claim["config"])], subject), NOT_SAID
    elif place == "Table IV":
        part = {"whole call": "whole", "kernel": "kernel"}.get(subject, subject.removeprefix("transfer "))
        measured, reason = (
            transfer_us(root, part),
            "Ours is an image of 3×32×32 and 64 output channels, in pageable memory.",
        )
    elif place == "Table V":
        measured = block_us(root, "fused" if "GPU" in subject else "numba, one thread")
        reason = (
            "Ours is a block of 64 channels at 32×32. The report does not state its size; its CPU time fits this one."
        )
    if measured is None:
        return _open(claim, "measured", f"No card's record has it yet. Run `python -m study convnext`. {reason}")
    card, value = measured
    scale = {"s": 1.0, "ms": 1e3}[str(claim["unit"])] * (1 if place in TABLES else 1e-6)
    ours = f"{value * scale:.4g}"
    known = (None, "measured", None, card, ours, None, "proxy", reason)
    return (str(claim["id"]), str(claim["value"]), *known)
