"""What the records of profiles say of the paper's claims (ICPE '26, arXiv:2606.19365): a finding each, with its reason.

The primary comparison is with the paper's own view, the window; the same rules say what a whole step gives. A number is
the mean of the runs. A claim about a card is settled by that card's folder under figures/records, if there is one; the
H200 stands in for the H100 (the same Hopper SMs; Table 1's 14592 cores are those of 114 SMs, the H200 has 132). A claim
about several cards is settled by the first of `SEVERAL` that has records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from medddpm.errors import BadInput
from medddpm.study.claims import rules
from medddpm.study.claims.causes import Runs, as_text, causes, mean
from medddpm.study.claims.paper import PAPER_SETTINGS, STAND_IN, TOLERANCE, Claim, Finding, claims_of, status_of
from medddpm.study.claims.rules import Run
from medddpm.study.profile.tables import Record, found, kernels
from medddpm.study.records.schemas import CARD
from medddpm.study.records.tables import gpu_folders, read_meta, read_table

SEVERAL = ("H100", "H200", "A100", "V100")
OF_ANOTHER = {"KN6": "A100", "KN7": "V100"}  # kernels that cuDNN has for one architecture (Sections 4.2 and 6.1)


def every_run(root: Path) -> dict[tuple[str, str], list[Run]]:
    """Every kernels table by card and part (as `profile.tables.Record` has them), a `Run` each; empty without any.

    Of the paper's settings alone: what runs under another, as FAST is, neither confirms nor refutes it.
    """
    parts = sorted({record.part for record in found(root) if record.table == "kernels"})
    runs: dict[tuple[str, str], list[Run]] = {}
    if parts:
        tables = kernels(root, tuple(parts))
        of_paper = tables[tables["config"].isin(PAPER_SETTINGS)]
        for key, table in of_paper.groupby(["gpu", "part", "run"], sort=False):
            gpu, part, _ = map(str, key)
            runs.setdefault((gpu, part), []).append(Run(table))
    return runs


def findings(paper: pd.DataFrame, runs: Runs, view: str) -> dict[str, Finding]:
    """A finding for every claim that a profile can speak to, by id.

    Args:
        paper: schema `PAPER`.
        runs: of `every_run`.
        view: "window" or "step".
    """
    return {claim.id: finding(claim, runs, view) for claim in claims_of(paper) if rules.is_measured(claim)}


def finding(claim: Claim, runs: Runs, view: str) -> Finding:
    """What the runs say of one claim, in one view."""
    card = card_for(claim, runs, view)
    if card is None:
        wanted = "card" if claim.gpu == "all" else claim.gpu.replace(";", " or ")
        return Finding(view, f"no {wanted} here; `medddpm profile` on one and committing its folder settles it")
    if claim.metric == rules.NAME:
        return _name_found(claim, runs, view, card)
    against_v100 = claim.metric == rules.AGAINST_V100
    by_run = _against_v100(claim, runs, view, card) if against_v100 else rules.over_runs(claim, runs[card, view])
    if not by_run:
        return Finding(view, f"{_lacking(claim, card, view)}: `medddpm profile --details` there settles it")
    ours, tolerance = as_text(np.mean(by_run, axis=0).tolist()), 0.0 if claim.metric == rules.RANK else TOLERANCE
    how = f"{_subject(claim, runs[card, view])} {_where(claim, card)}; {_runs(by_run)}"
    if status_of(claim, Finding(view, how, ours, tolerance)) == "differs":
        how = f"{how}; {causes(_cycles_of(claim) if against_v100 else claim, runs, view, card)}"
    return Finding(view, how, ours, tolerance)


def card_for(claim: Claim, runs: Runs, view: str) -> str | None:
    """The folder whose records settle a claim; None where there is no such card."""
    named = SEVERAL if claim.gpu == "all" else claim.gpu.split(";")
    candidates = {*named, *(STAND_IN[card] for card in named if card in STAND_IN)}
    return next((card for card in SEVERAL if card in candidates and (card, view) in runs), None)


def _name_found(claim: Claim, runs: Runs, view: str, card: str) -> Finding:
    """Whether a kernel of Table 2 is launched: in the step, or for the window's view in any of the card's records."""
    pick = rules.SUBJECTS[claim.subject].pick
    looked = {
        (part, n): pick(run.table)
        for (gpu, part), own in runs.items()
        for n, run in enumerate(own)
        if gpu == card and view in ("window", part)
    }
    launched = pd.concat(looked, names=["part", "run", "row"])
    if len(launched):
        same = launched[launched["kernel"].str.contains(claim.value, regex=False)]
        told = same if len(same) else launched
        settings, parts = (", ".join(dict.fromkeys(c)) for c in (told["config"], told.index.get_level_values("part")))
        name = claim.value if len(same) else rules.short_name(told)
        return Finding(view, f"launched on the {card} under {settings} (records: {parts})", name)
    if claim.subject in OF_ANOTHER:
        theirs = OF_ANOTHER[claim.subject]
        return Finding(view, f"a kernel of another architecture, which the paper saw on the {theirs}: no {theirs} here")
    return Finding(view, f"no launch of the {view} on the {card} is of {claim.subject} under any setting", "none")


def _against_v100(claim: Claim, runs: Runs, view: str, card: str) -> list[list[float]]:
    """By how much fewer cycles the card's dominant kernel takes than the V100's, which must be here too."""
    cycles = _cycles_of(claim)
    theirs = mean(cycles, runs.get(("V100", view), []))
    return [[float(theirs) / own[0]] for own in rules.over_runs(cycles, runs[card, view])] if theirs else []


def _cycles_of(claim: Claim) -> Claim:
    return replace(claim, metric="cycles")


def _lacking(claim: Claim, card: str, view: str) -> str:
    what = {rules.RANK: "ncu's estimated speedups", rules.AGAINST_V100: "the V100 beside it"}
    return f"no {view} of the {card} has {what.get(claim.metric, 'the counters or the settings it takes')}"


def _subject(claim: Claim, runs: list[Run]) -> str:
    """The rule in words, with what it has found: which kernel is dominant, and what lies beside a narrow choice."""
    subject = rules.SUBJECTS[claim.subject]
    if subject is rules.DOMINANT:
        return f"{subject.meaning} ({rules.short_name(subject.pick(runs[-1].of(claim.config)))})"
    if subject is rules.TENSOR and claim.metric == "share of kernel time":
        every = mean(replace(claim, subject="GEMM"), runs)
        return f"{subject.meaning} (all convolutions and GEMMs: {every}%)"
    return subject.meaning


def _where(claim: Claim, card: str) -> str:
    if card in claim.gpu.split(";"):
        return f"on the {card}"
    return f"on the {card}, for {'every card' if claim.gpu == 'all' else 'the ' + claim.gpu.replace(';', ' and the ')}"


def _runs(by_run: list[list[float]]) -> str:
    if len(by_run) == 1:
        return "one run"
    values = np.asarray(by_run)
    middle = np.abs(values.mean(axis=0))
    apart = np.divide(np.ptp(values, axis=0), middle, out=np.zeros_like(middle), where=middle > 0)
    return f"mean of {len(by_run)} runs, {apart.max():.1%} apart"


def configuration(values: Mapping[str, int]) -> dict[str, Finding]:
    """The profiled run's settings (Section 3.2) against the values our code defaults to.

    Args:
        values: any of "batch size", "input size", "depth size" and "channels", read from the live code.
    """
    ids = {"batch size": "P051", "input size": "P052", "depth size": "P053", "channels": "P054"}
    reason = "the default of this package's own training and network"
    return {ids[name]: Finding("configuration", reason, str(value)) for name, value in values.items()}


def window(root: Path) -> dict[str, Finding]:
    """The launches that are profiled, and of how long a run (Section 3.2), as the newest window of BASE was taken."""
    profiled = [r for r in found(root) if (r.table, r.part, r.setting) == ("kernels", "window", "BASE")]
    if not profiled:
        reason = "there is no record of a window; medddpm profile on a GPU, its folder committed, settles it"
        return {identity: Finding("configuration", reason) for identity in ("P050", "P055", "P056")}
    meta = read_meta(_newest(profiled).path)
    begin, count = meta["measurement"]["program"]["window_start"], meta["launches"]
    steps = re.search(r"--steps (\d+)", meta["command"])
    taken = f"as the {_newest(profiled).gpu}'s windows were taken"
    return {
        "P050": Finding(
            "configuration",
            f"a run of that many steps is enough: the window ends at launch {begin + count}, within the first step, "
            "and what follows it is never profiled, 25 epochs or not",
            f"{steps[1]} steps" if steps else None,
        ),
        "P055": Finding("configuration", taken, str(begin)),
        "P056": Finding("configuration", taken, str(count)),
    }


def software(versions: Mapping[str, str]) -> dict[str, Finding]:
    """The paper's software (Section 3.1) against ours.

    Args:
        versions: any of "PyTorch", "Python", "Nsight Compute", "CUDA Toolkit" and "cuDNN"; what is missing of them
            cannot be told.
    """
    ids = {"PyTorch": "P057", "Python": "P058", "Nsight Compute": "P059", "CUDA Toolkit": "P060", "cuDNN": "P061"}
    reason = "the book is kept on current releases; kernels chosen by others may differ from the paper's"
    unknown = "no record of a GPU's says it; medddpm profile on one, its folder committed, settles it"
    return {
        identity: Finding("software", reason if name in versions else unknown, versions.get(name))
        for name, identity in ids.items()
    }


def recorded_versions(root: Path) -> dict[str, str]:
    """The versions that the newest kernels table of any machine was taken with, by the names `software` takes."""
    tables = [r for r in found(root) if r.table == "kernels"]
    if not tables:
        return {}
    meta = read_meta(_newest(tables).path)
    fields = {"PyTorch": "torch", "Python": "python", "Nsight Compute": "ncu", "CUDA Toolkit": "cuda"}
    versions = {name: str(meta[field]) for name, field in fields.items() if meta.get(field)}
    if number := meta.get("cudnn"):  # 91900 is 9.19.0; before 9, 8902 was 8.9.2
        major, rest = divmod(int(number), 10_000 if int(number) >= 90_000 else 1_000)
        versions["cuDNN"] = f"{major}.{rest // 100}.{rest % 100}"
    return versions


def pinned_versions(root: Path) -> dict[str, str]:
    """The versions the repository at `root` pins for everybody: "PyTorch" from the lock, "Python" from environment.yml.

    Raises:
        BadInput: a file is missing or pins no such thing.
    """
    return {
        "PyTorch": _pinned(root / "requirements.lock", r"^torch==(\S+)$"),
        "Python": _pinned(root / "environment.yml", r"^\s*- python=([\d.]+)$"),
    }


def cards(paper: pd.DataFrame, root: Path) -> dict[str, Finding]:
    """Table 1: what is stated of the paper's cards, against figures/records/<card>/card.csv where there is that card.

    What a table takes from the paper itself settles nothing. A number derived from clocks is compared within
    `TOLERANCE`, since boards of one name are sold at several clocks; anything else must be equal.
    """
    table = paper[(paper["figure"] == "Table 1") & (paper["subject"] == "GPU")]
    said = {folder.name: _card_of(folder) for folder in gpu_folders(root)}
    keys = zip(table["id"], table["gpu"], table["metric"], strict=True)
    return {identity: _property(gpu, metric, said) for identity, gpu, metric in keys}


def _property(gpu: str, metric: str, said: Mapping[str, Mapping[str, tuple[str, str]]]) -> Finding:
    if gpu not in said:
        kin = said.get(STAND_IN.get(gpu, ""), {}).get(metric)
        beside = f"; of the {STAND_IN[gpu]} we have {kin[0]} ({kin[1]})" if kin else ""
        return Finding("card", f"no {gpu} here, and this is its maker's statement about its {metric}{beside}")
    if metric not in said[gpu]:
        return Finding("card", f"the {gpu}'s driver does not tell its {metric}")
    value, origin = said[gpu][metric]
    return Finding("card", f"of the {gpu} here: {origin}", value, TOLERANCE if origin.startswith("derived") else 0.0)


def _card_of(folder: Path) -> dict[str, tuple[str, str]]:
    """What a card's own table says, value and origin by property, less what it takes from the paper."""
    if not (folder / "card.csv").is_file():
        return {}
    card = read_table(folder / "card.csv", CARD)
    own = card[~card["origin"].str.startswith("same architecture")]
    return {
        name: (value, origin) for name, value, origin in zip(own["property"], own["value"], own["origin"], strict=True)
    }


def _newest(listed: list[Record]) -> Record:
    return max(listed, key=lambda record: str(read_meta(record.path).get("date", "")))


def _pinned(path: Path, pattern: str) -> str:
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    matched = re.search(pattern, text, re.MULTILINE)
    if not matched:
        raise BadInput(path, "pins no version where one is looked for", "restore it (git checkout)")
    return matched.group(1)
