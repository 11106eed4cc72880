"""The page of the policy repeats what other readings of the paper's numbers give, as the records have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from helpers.pages import page_text
from helpers.repository import ROOT

from medddpm.measure import summaries
from study.claims import findings, verdicts
from study.claims.by_figure import PROFILED
from study.claims.case import Case
from study.claims.kernels import DOMINANT, KernelsOfRun, Runs
from study.claims.numbers import Number, instruction_share, ratio
from study.claims.paper import Claim, as_range, claims_of, paper_claims

PAPER = paper_claims(ROOT)
CLAIMS = {claim.id: claim for claim in claims_of(PAPER)}
LARGEST, RANGES = ("P001", "P002", "P007"), ("P103", "P104", "P199")  # of several cards together
NAMED_DOMINANT = {
    "P115": instruction_share("inst_fp", DOMINANT, "BASE"),
    "P116": instruction_share("inst_fp", DOMINANT, "OPT1"),
    "P117": ratio(instruction_share(("inst_uniform", "inst_move", "inst_misc"), DOMINANT, "OPT1")),
}
Tables = Mapping[str, pd.DataFrame]


@pytest.fixture(scope="module")
def every() -> Runs:
    return findings.every_run(ROOT)


@pytest.fixture(scope="module")
def runs(every: Runs) -> Runs:
    """The H100's, the one card of the paper's that was measured."""
    return {key: own for key, own in every.items() if key[0] == "H100"}


@pytest.fixture(scope="module")
def judged(runs: Runs) -> Tables:
    """The counted numbers of each view, by claim."""
    return {view: counted(runs, view) for view in ("window", "step")}


@pytest.fixture(scope="module")
def section() -> str:
    return page_text("site/policy.md").partition("## Other readings ")[2].partition(" ## ")[0]


def counted(runs: Runs, view: str) -> pd.DataFrame:
    return verdicts.measured(verdicts.settle(PAPER, findings.findings(PAPER, runs, view))).set_index("id")


def held(table: pd.DataFrame) -> str:
    return f"{(table['status'] == 'reproduced').sum()} of {len(table)}"


def both(judged: Tables, how: str = "{} and {}") -> str:
    return how.format(*map(held, judged.values()))


class OneCard(Case):
    """A claim that one card decides, whatever others the paper sums up in the same number."""

    def judge(self, number: Number, **how: Any) -> verdicts.Finding:
        return super().judge(number, **(how | {"of_cards": None}))


def read(claim: Claim, found: verdicts.Finding) -> tuple[float, str]:
    """Our number of a claim in another reading than its own, and the verdict."""
    assert found.our_value is not None
    return float(found.our_value), verdicts.status_of(claim, found)


def by_the_h100_alone(identity: str, runs: Runs, view: str) -> tuple[float, str]:
    return read(CLAIMS[identity], PROFILED[identity](OneCard(CLAIMS[identity], runs, view)))


def redecided(judged: Tables, changes: Mapping[tuple[str, str], str]) -> Tables:
    """The verdicts with others in place of, or beside, some of them; by view and claim."""
    tables = {view: table[["status"]].copy() for view, table in judged.items()}
    for (view, identity), status in changes.items():
        tables[view].loc[identity, "status"] = status
    return tables


def without(judged: Tables, *identities: str) -> Tables:
    return {view: table.drop(index=list(identities)) for view, table in judged.items()}


def less_one(text: str) -> str:
    """A ratio or a range of ratios as the change that it states."""
    return "-".join(f"{number - 1:.9f}" for number in dict.fromkeys(as_range(text) or ()))


def test_the_counts_that_the_others_are_held_against(judged: Tables, section: str) -> None:
    said = "{} numbers are reproduced in the window, and {} in the step. "
    assert section.startswith(both(judged, said))


def test_launches_averaged_as_in_the_other_view(runs: Runs, section: str) -> None:
    timed = [KernelsOfRun(run.table.assign(view=summaries.BY_TIME)) for run in runs["H100", "window"]]
    tables = [run.table for run in runs["H100", "step"]]
    each = [table.loc[table.index.repeat(table["count"])].assign(count=1, view="window") for table in tables]
    alike = [KernelsOfRun(table) for table in each]
    by_time = held(counted({**runs, ("H100", "window"): timed}, "window"))
    assert f"launches weighted by time, as the step's are, {by_time} are reproduced." in section
    unweighted = held(counted({**runs, ("H100", "step"): alike}, "step"))
    assert f"launches counted alike, as the window's are, {unweighted} are." in section


def test_who_decides_for_several_cards(runs: Runs, judged: Tables, section: str) -> None:
    six, (first, second) = (*LARGEST, *RANGES), ("P007", "P199")
    assert f"largest of them ({', '.join(LARGEST)}) or one range ({', '.join(RANGES)})" in section
    decided = [identity for identity in six if identity not in (first, second)]
    for table in judged.values():
        assert [identity for identity in six if identity in table.index] == decided
        assert set(table.loc[decided, "status"]) == {"differs"}
    alone = {(v, name): by_the_h100_alone(name, runs, v) for v in judged for name in (first, second)}
    window, step = (alone[view, first] for view in judged)
    assert (window[1], step[1]) == ("differs", "reproduced")
    assert f"P007 in the step ({step[0]:.2f}, within 4–6) and not in the window ({window[0]:.2f}); " in section
    window, step = (alone[view, second] for view in judged)
    assert (window[1], step[1]) == ("reproduced", "differs")
    assert f"P199 in the window ({window[0]:.2f}, within 4–8.4) and not in the step." in section
    bounds = [verdicts.accepted(CLAIMS[name], verdicts.tolerance_of(CLAIMS[name])) for name in (first, second)]
    assert bounds == [pytest.approx((4, 6)), pytest.approx((4, 8.4))]
    by_one = both(redecided(judged, {key: status for key, (_, status) in alone.items()}))
    assert f"With all six decided by the H100, {by_one} are reproduced; " in section
    assert f"with none of the six, {both(without(judged, *decided))}; " in section
    of_one = {view: table[[CLAIMS[name].gpu == "H100" for name in table.index]] for view, table in judged.items()}
    assert f"without any claim about more than one card, {both(of_one)}." in section


def test_what_one_card_can_refute(runs: Runs, judged: Tables, section: str) -> None:
    alone = {(v, name): by_the_h100_alone(name, runs, v) for v in judged for name in (*LARGEST, *RANGES)}
    refuted = [key for key, (_, status) in alone.items() if key[1] in RANGES and status == "differs"]
    assert refuted == [("window", "P103"), ("window", "P104"), *(("step", name) for name in RANGES)]
    for view, name in ((view, name) for view in judged for name in ("P001", "P002")):
        bounds = verdicts.accepted(CLAIMS[name], verdicts.tolerance_of(CLAIMS[name]))
        assert bounds is not None
        assert alone[view, name][0] < bounds[0]
    assert f"P103 and P104 in both views, and P199 in the step ({alone['step', 'P199'][0]:.1f})." in section
    so = both(redecided(without(judged, "P001", "P002"), {("step", "P199"): "differs"}))
    assert f"refutes nothing: P001, P002. Decided so, {so} are reproduced." in section


def test_the_dominant_kernel_alone(runs: Runs, judged: Tables, section: str) -> None:
    assert list(NAMED_DOMINANT) == PAPER.loc[PAPER["subject"] == "dominant kernels", "id"].tolist()
    alone = {
        (view, name): read(CLAIMS[name], Case(CLAIMS[name], runs, view).judge(number))
        for view in judged
        for name, number in NAMED_DOMINANT.items()
    }
    changed = [key for key, (_, status) in alone.items() if status != judged[key[0]].loc[key[1], "status"]]
    assert changed == [("window", "P116"), ("step", "P115"), ("step", "P117")]
    window, step = map(held, redecided(judged, {key: status for key, (_, status) in alone.items()}).values())
    value = {key: number for key, (number, _) in alone.items()}
    assert f"P116 would differ in the window ({value['window', 'P116']:.1f}; the paper has 41): {window}." in section
    assert f"P115 would be reproduced ({value['step', 'P115']:.1f}; the paper has 73) and P117 " in section
    assert f"would differ ({value['step', 'P117']:.2f}; the paper has 2): {step}." in section


def test_a_tolerance_of_the_change(judged: Tables, section: str) -> None:
    changes = {}
    for view, table in judged.items():
        for name, ours in table["our_value"].items():
            claim = CLAIMS[str(name)]
            tolerance = verdicts.tolerance_of(claim)
            if claim.unit == "x" and "reduction" not in claim.metric and tolerance == 0.2:
                change = replace(claim, value=less_one(claim.value), unit="")
                found = verdicts.Finding(view, "so", less_one(ours), tolerance)
                changes[view, claim.id] = verdicts.status_of(change, found)
    changed = {key: status for key, status in changes.items() if status != judged[key[0]].loc[key[1], "status"]}
    five = ["P102", "P182", "P183", "P190", "P192"]
    assert changed == {
        **{("window", name): "differs" for name in five},
        ("step", "P101"): "reproduced",
        ("step", "P117"): "differs",
    }
    window, step = map(held, redecided(judged, changes).values())
    assert f"{', '.join(five[:-1])} and {five[-1]} would differ in the window: {window}." in section
    assert f"In the step P101 would be reproduced and P117 would differ: {step}." in section
    low, high = verdicts.accepted(CLAIMS["P102"], 0.2) or (0.0, 0.0)
    assert f"any ratio from {low:.2f} to just below {high:.0f} reproduces {CLAIMS['P102'].value}." in section
    assert high < 1


def test_what_follows_from_other_numbers(judged: Tables, section: str) -> None:
    for table in judged.values():
        assert set(table.loc[["P001", "P002", "P201"], "status"]) == {"differs"}
    stated = {name: as_range(claim.value) or (0.0, 0.0) for name, claim in CLAIMS.items() if as_range(claim.value)}
    for name, turned in (("P001", "P104"), ("P002", "P105")):
        assert stated[name][0] == pytest.approx(1 / stated[turned][0])
    for name in ("P128", "P129"):
        assert stated[name][0] / stated["P126"][0] == pytest.approx(stated["P201"][0], rel=0.06)
    rest = both(without(judged, "P001", "P002", "P201"))
    assert f"All three differ in both views; without them {rest} are reproduced." in section


def test_which_card_decides(every: Runs, judged: Tables, section: str) -> None:
    said = {}
    for view, table in judged.items():
        found = findings.findings(PAPER, every, view)
        theirs = {name: replace(found[name], our_value=found[name].other_value) for name in table.index}
        status = pd.Series({name: verdicts.status_of(CLAIMS[name], finding) for name, finding in theirs.items()})
        changed = status.index[status != table["status"]]
        more, fewer = ([name for name in changed if status[name] == verdict] for verdict in ("reproduced", "differs"))
        said[view] = (f"{(status == 'reproduced').sum()} of {len(status)}", more, fewer)
    (window, more, fewer), (step, others, none) = said["window"], said["step"]
    assert (len(more), len(fewer), len(others), none) == (4, 2, 4, [])
    also = f"(also {', '.join(more[:3])} and {more[3]}, not {' and '.join(fewer)})"
    assert f"{window} would be reproduced in the window {also} and {step} in the step" in section
    assert f"in the step (also {', '.join(others[:3])} and {others[3]})." in section


def test_which_run_counts(runs: Runs, judged: Tables, section: str) -> None:
    changed = {}
    for view, table in judged.items():
        for number, run in enumerate(runs["H100", view]):
            alone = counted({**runs, ("H100", view): [run]}, view)
            other = alone["status"] != table["status"].reindex(alone.index)
            changed |= {(view, number, name): alone.loc[name, "our_value"] for name in alone.index[other]}
    assert list(changed) == [("step", 0, "P161"), ("step", 2, "P129")]
    first, third = (float(value) for value in changed.values())
    means = [float(judged["step"].loc[name, "our_value"]) for name in ("P161", "P129")]
    assert f"the first alone reproduces P161 ({first:.1f}; the mean of three is {means[0]:.1f}), the third" in section
    assert f"P129 ({third:.1f}; the mean is {means[1]:.1f}, beyond its limit by" in section
    limit = max(verdicts.accepted(CLAIMS["P129"], verdicts.tolerance_of(CLAIMS["P129"])))
    assert f"{means[1] - limit:.2f}" == "0.04"
