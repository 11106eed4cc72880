"""The gain of other people's networks on the fast path, by the bench's record.

A table named `compared` is the one of README: the H100's networks, but `MedNeXt` on an H200. Else a table is named by
its card, as H200. `UNet` with batch norm has in either the median of its runs with `max-autotune`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from study.bench import leases, repeats, sentences, tables
from study.bench.networks import NETWORKS
from study.bench.sentences import exact, fully_timed, kind, parts, tool
from study.bench.settings import BENCH_SETTINGS
from study.numbers import others
from study.numbers.bench import BEST, fastest_tool, recorded, step_ms, times
from study.numbers.texts import chosen, in_words, span
from study.words import listed

_RATIOS = {"accelerate": "ratio", "graphed_step": "step_ratio"}
_LINKS = {  # README's tables link each of these once
    " (H200)": " ([H200](site/fast_path.md#how-the-tools-were-timed))",
    "deep supervision": "[deep supervision](site/glossary.md#deep-supervision)",
}
_BEST_KNOWN = (  # what README shows; the others are folded
    "nnU-Net's own epoch, `PlainConvUNet`",
    "nnU-Net `PlainConvUNet` 128³ ×2, deep supervision",
    "MONAI `UNet` 128³ ×2",
    "MONAI `SwinUNETR` 96³",
    "MONAI `DiffusionModelUNet` 128³",
    "Med-DDPM 128³",
)
_LEFT_OUT = "2026-11-26"  # the H200's older rows are of other runs
_ANOTHER_HOST = 1 / 6  # hours: rows of one run are measured closer together


def rows(root: Path, which: str) -> list[str]:
    """Returns a part of README's table: times under the best tool and ours, of nnU-Net, of segmentation, of diffusion.

    nnU-Net's own epoch comes first. If any row of the record names its host, a last column names the leases that
    measured the tool and both of ours.

    Args:
        root: the repository.
        which: "best-known" for the rows that README shows, "others" for those that it folds.
    """
    table = _table(root)
    shown = {name: table.pop(name) for name in _BEST_KNOWN}
    text = "\n".join(chosen(which, {"best-known": shown, "others": table}).values())
    for words, link in _LINKS.items():
        text = text.replace(words, link, 1)
    return text.splitlines()


def how_many_others(root: Path) -> str:
    """Returns the number of rows that README folds: "twelve"."""
    return in_words(len(rows(root, "others")))


def ratio_of_others(root: Path) -> str:
    """Returns the least and the largest gain by `accelerate` of the rows that README folds: "1.00 to 11.37"."""
    gains = [re.search(r"\(([\d.]+)×", row) for row in rows(root, "others")]
    return span(pd.Series([float(gain[1]) for gain in gains if gain]))


def _table(root: Path) -> dict[str, str]:
    """Returns the lines of README's table by the names of their networks, without links."""
    record, compared = _compared_record(root), _compared(root)
    letters = leases.named(record)
    lines = {}

    def add(called: str, ours: str, graphed: str, rival: str, measured: pd.DataFrame) -> None:
        by = f"{leases.of(measured, letters)}|" if len(letters) else ""
        lines[called] = f"|{called}|{ours}|{graphed}|{rival}|{by}"

    for (_, network), took in others.nnunet(root).items():
        gain = took["nnU-Net"] / took["accelerated"]
        seconds = f"{exact(took['nnU-Net'])} → {exact(took['accelerated'])} s ({gain:.2f}×)"
        add(f"nnU-Net's own epoch, `{network}`", seconds, "–", "nnU-Net's trainer", record.iloc[:0])
    by_use = compared.loc[sorted(compared.index, key=lambda name: _by_use(compared, str(name)))]
    for name, row in by_use.iterrows():
        measured = tables.rows_of(record, str(name), "step")
        ours = f"{exact(row['best_ms'])} → {exact(row['best_ms'] / row['ratio'])} ms ({_ratio(row, 'ratio')})"
        graphed = f"{exact(row['best_ms'] / row['step_ratio'])} ms ({_ratio(row, 'step_ratio')})"
        rival = tool(BENCH_SETTINGS[row["best"]], short=True)
        add(_called(str(name), row), ours, graphed, rival, measured.reindex([row["best"], *_RATIOS]))
    ours, graphed = (
        f"{step_ms(root, 'H100', setting)} ms ({times(root, 'H100', BEST, setting)}×)" for setting in _RATIOS
    )
    best = fastest_tool(root, "H100")
    measured = tables.rows_of(recorded(root)["H100"], tables.OURS, "step").reindex([best, *_RATIOS])
    ours = f"{step_ms(root, 'H100', BEST)} → {ours}"
    add("Med-DDPM 128³", ours, graphed, tool(BENCH_SETTINGS[best], short=True), measured)
    return lines


def _by_use(compared: pd.DataFrame, name: str) -> tuple[int, float]:
    """Returns the place of a network in README's table: nnU-Net, segmentation, diffusion; the largest ratio first."""
    maker = parts(name)[0]
    drawing = NETWORKS[name].denoises or "Autoencoder" in name or "autoencoder" in name
    return (0 if maker == "nnU-Net" else 2 if drawing else 1), -float(compared["ratio"][name])


def _called(name: str, row: pd.Series[float]) -> str:
    network = NETWORKS[name]
    maker, title, variant = parts(name)
    at_once = f" ×{network.batch}" if network.batch > 1 else ""
    elsewhere = str(row["title"]).removeprefix(network.title)
    return f"{maker} `{title}` {network.side}³{at_once}{f', {variant}' if variant else ''}{elsewhere}"


def rows_apart(root: Path) -> str:
    """Returns for how many networks of README's table the tool and `accelerate` were timed on two H100s: "eight"."""
    hours = tables.others(_compared_record(root))["apart_h"].drop(list(tables.ELSEWHERE))
    return in_words((hours > _ANOTHER_HOST).sum())


def slower(root: Path) -> str:
    """Returns the networks that `accelerate` makes no faster: "`UNet` with batch norm (0.90 to 1.11 in 4 runs)"."""
    return sentences.slower_named(_compared(root))


def steady_within(root: Path, table: str) -> str:
    """Returns how much of a step's median lies between its 10th and 90th percentile, at most, in percent: "3".

    Of the best tool and of `accelerate`, for all networks but `UNet` with batch norm.
    """
    timed = _timed(root, table).drop(index=tables.HOST_BOUND)
    ours = (timed["p90_ms"] - timed["p10_ms"]) / timed["accelerate_ms"]
    best = (timed["best_p90_ms"] - timed["best_p10_ms"]) / timed["best_ms"]
    return f"{100 * max(ours.max(), best.max()):.0f}"


def not_searched(root: Path) -> str:
    """Returns the networks for which `max-autotune` was not timed."""
    return listed([kind(network) for network in sentences.untimed(_compared(root))[1]])


def memory(root: Path, ours: str) -> str:
    """Returns the memory with `accelerate` or `graphed_step` divided by the best tool's: "0.76 to 1.06"."""
    return span(sentences.memory(_compared(root))[ours])


def error(root: Path, of: str) -> str:
    """Returns how far the output or the gradients lie from float32's, in percent: "0.6 to 4.1"."""
    return sentences.errors_span(_compared_record(root), f"rel_error_{of}")


def error_beside_best(root: Path) -> str:
    """Returns the largest of our errors divided by the best tool's: "1.11"."""
    return f"{sentences.errors_beside_best(_compared_record(root)):.2f}"


def gaps(root: Path) -> str:
    """Returns the sentences on which tools were not timed for which networks, and on autocast's errors."""
    return sentences.network_gaps(_compared_record(root))


def how_many(root: Path, table: str) -> str:
    """Returns how many networks were timed with `accelerate` and with `graphed_step`: "15"."""
    return str(len(_timed(root, table)))


def ratio(root: Path, table: str, ours: str) -> str:
    """Returns the best tool's time divided by that with `accelerate` or `graphed_step`: "0.98 to 11.37"."""
    return span(_timed(root, table)[_RATIOS[ours]])


def median_ratio(root: Path, table: str, ours: str) -> str:
    """Returns the median of the ratios of `ratio`: "1.61"."""
    return f"{_timed(root, table)[_RATIOS[ours]].median():.2f}"


def captured_by_hand(root: Path, which: str) -> str:
    """Returns a compiled step captured by hand divided by `graphed_step`, the least or the most on H200s: "1.10"."""
    ratios = tables.by_hand(recorded(root)["H200"])
    return f"{chosen(which, {'least': ratios.min(), 'most': ratios.max()}):.2f}"


def captured_by_hand_of(root: Path, which: str) -> str:
    """Returns the network of `captured_by_hand`: "`VNet`"."""
    ratios = tables.by_hand(recorded(root)["H200"])
    return kind(ratios.index[ratios == chosen(which, {"least": ratios.min(), "most": ratios.max()})][0])


def captured_by_hand_count(root: Path) -> str:
    """Returns for how many networks a compiled step was captured by hand: "six"; one of them on other hosts."""
    return in_words(len(tables.by_hand(recorded(root)["H200"])) + 1)


def out_of_box(root: Path, which: str, places: str) -> str:
    """Returns PyTorch's time out of the box divided by `accelerate`'s on the H100: least, median or most."""
    ratios = _out_of_box(root)
    return f"{chosen(which, {'least': ratios.min(), 'median': ratios.median(), 'most': ratios.max()}):.{places}f}"


def out_of_box_count(root: Path) -> str:
    """Returns for how many networks PyTorch out of the box was timed on the H100: "twelve"."""
    return in_words(len(_out_of_box(root)))


def compiled_default(root: Path) -> str:
    """Returns a step compiled in the default mode after `accelerate`, divided by `accelerate`'s: "3.8 to 7.2"."""
    record, both = recorded(root)["H200"], ["FAST compile", "accelerate"]
    of_each = (tables.rows_of(record, name, "step")["median_ms"].reindex(both) for name in record["network"].unique())
    return span(pd.Series([took.iloc[0] / took.iloc[1] for took in of_each]).dropna(), places=1)


def _record(root: Path, table: str) -> pd.DataFrame:
    """Returns a card's rows (schema `BENCH`) that the page compares, or those of README's table."""
    if table == "compared":
        return tables.compared(recorded(root))
    record = recorded(root)[table]
    return record[record["date"] >= _LEFT_OUT] if table == "H200" else record


def _compared_record(root: Path) -> pd.DataFrame:
    return _record(root, "compared")


def _timed(root: Path, table: str) -> pd.DataFrame:
    card = "H100" if table == "compared" else table
    return fully_timed(_record(root, table), repeats.searched_runs(root, card))


def _compared(root: Path) -> pd.DataFrame:
    return _timed(root, "compared")


def _ratio(row: pd.Series[float], name: str) -> str:
    """Writes a ratio, and of several runs the least and the most behind it: "1.00×, 0.90 to 1.11"."""
    several = f", {row[f'{name}_least']:.2f} to {row[f'{name}_most']:.2f}"
    return f"{row[name]:.2f}×{several if row['runs'] > 1 else ''}"


def _out_of_box(root: Path) -> pd.Series[float]:
    measured = tables.others(recorded(root)["H100"])
    return (measured["PyTorch"] / measured["accelerate_ms"]).dropna()
