"""The paper's numbers in the shape in which they are drawn, against its rows by their ids."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.repository import ROOT

from medddpm.errors import BadInput
from study.claims.paper import PAPER_CARDS, PAPER_SETTINGS, Stated, paper_claims, paper_values
from study.records.schemas import PAPER

NOTHING = np.nan
FALLEN = (0.03, 0.10)


@pytest.fixture(scope="module")
def paper() -> pd.DataFrame:
    return paper_claims(ROOT)


def made_up(*rows: tuple[str | None, str, str | None, str, str, str, str]) -> pd.DataFrame:
    """Rows of figure, gpu, config, subject, metric, value and unit."""
    table = pd.DataFrame(rows, columns=["figure", "gpu", "config", "subject", "metric", "value", "unit"])
    return table.assign(id="P001", section="1", qualifier="=")[list(PAPER.columns)]


def check(stated: Stated, **rows: list[float | tuple[float, float]]) -> None:
    """A number is both bounds."""
    pairs = {
        card: [one if isinstance(one, tuple) else (one, one) for one in expected] for card, expected in rows.items()
    }
    for table, end in ((stated.low, 0), (stated.high, 1)):
        assert list(table.index) == list(PAPER_CARDS)
        assert list(table.columns) == list(PAPER_SETTINGS)
        assert table.index.name == "gpu"
        for card, expected in pairs.items():
            np.testing.assert_array_equal(table.loc[card].to_numpy(), [pair[end] for pair in expected], err_msg=card)


# the paper's own


def test_utilization_is_as_stated(paper: pd.DataFrame) -> None:
    """P118 to P121, P132 to P135 and P146 to P149."""
    check(
        paper_values(paper, "Fig 10", "Tensor Core utilization"),
        V100=[0, 0, 0, 0],
        A100=[1.45, 9.98, 1.59, 1.76],
        H100=[1.44, 7.81, 1.47, 1.62],
    )


def test_what_the_paper_leaves_open_is_missing(paper: pd.DataFrame) -> None:
    """P130, P131, P144 and P145: no channels-last, no V100. And of what is nowhere, nothing."""
    check(
        paper_values(paper, "Fig 10", "integer ALU utilization"),
        V100=[NOTHING] * 4,
        A100=[22.66, 20.0, NOTHING, NOTHING],
        H100=[21.38, 18.11, NOTHING, NOTHING],
    )
    check(paper_values(paper, "Fig 10", "CUDA core utilization"), V100=[23.63, 23.6, 9.65, 9.65])
    for nothing in (("Fig 11", "Tensor Core utilization"), ("Fig 10", "colour"), ("Fig 10", "Tensor Core")):
        check(paper_values(paper, *nothing), V100=[NOTHING] * 4, A100=[NOTHING] * 4, H100=[NOTHING] * 4)


def test_ratios_of_several_cards_and_of_a_range(paper: pd.DataFrame) -> None:
    """P097, P100 and P104, 0.01 to 0.02 of both cards; the V100 has no ratio and so no BASE."""
    check(
        paper_values(paper, "Fig 8", "SM cycles"),
        V100=[NOTHING] * 4,
        A100=[1, 0.18, (0.01, 0.02), NOTHING],
        H100=[1, 0.39, (0.01, 0.02), NOTHING],
    )
    table = paper_values(paper, "Fig 12", "active warps per cycle")
    check(table, V100=[1, 1, 1.4, 1.4], A100=[1, 1, 1.4, 1.4], H100=[1, 1.15, 1.3, 1.3])


def test_a_row_of_all_settings_and_of_two(paper: pd.DataFrame) -> None:
    """P196 and P197, 0.03 to 0.10 of OPT2 and OPT12; P198, of every setting but what a ratio is of."""
    table = paper_values(paper, "Fig 13", "all stall classes")
    check(table, V100=[1, 0, 0, 0], A100=[1, NOTHING, FALLEN, FALLEN], H100=[1, NOTHING, FALLEN, FALLEN])


def test_shares_are_of_the_subjects_that_are_asked_for(paper: pd.DataFrame) -> None:
    """P103, of all cards, 73 to 80; P108, more than 80 of two; P096, a bound too; P092 and P107 under two names."""
    share = "share of kernel time"
    check(
        paper_values(paper, "Fig 8", share, ["elementwise_kernel", "elementwise + layout"]),
        V100=[NOTHING, NOTHING, (73, 80), (80, np.inf)],
        A100=[NOTHING, NOTHING, (73, 80), NOTHING],
        H100=[NOTHING, NOTHING, (73, 80), (80, np.inf)],
    )
    every = paper_values(paper, "Fig 8", share, ["normalization + pointwise + layout"])
    check(every, H100=[NOTHING, (55, np.inf), NOTHING, NOTHING])
    check(paper_values(paper, "Fig 8", share, ["conv/GEMM", "GEMM"]), A100=[NOTHING, 43, NOTHING, 42])


# made up


def test_every_way_of_naming_cards_and_settings() -> None:
    table = made_up(
        ("Fig 1", "all", "BASE", "a", "heat", "10-20", "%"),
        ("Fig 1", "V100;H100", "OPT1;OPT12", "a", "heat", "5", "%"),
        ("Fig 1", "A100", "OPT2", "b", "heat", "-3", "%"),
        ("Fig 2", "A100", "OPT1", "a", "heat", "99", "%"),
        (None, "A100", "OPT1", "a", "heat", "99", "%"),
    )
    check(
        paper_values(table, "Fig 1", "heat"),
        V100=[(10, 20), 5, NOTHING, 5],
        A100=[(10, 20), NOTHING, -3, NOTHING],
        H100=[(10, 20), 5, NOTHING, 5],
    )
    check(paper_values(table, "Fig 1", "heat", ["b"]), A100=[NOTHING, NOTHING, -3, NOTHING], V100=[NOTHING] * 4)


def test_only_a_ratio_has_a_base_of_one() -> None:
    heat = ("Fig 1", "A100", "OPT1", "a", "heat", "0.5", "x")
    check(paper_values(made_up(heat), "Fig 1", "heat"), A100=[NOTHING, 0.5, NOTHING, NOTHING])
    ratio = ("Fig 1", "A100", "OPT1", "a", "heat, relative to BASE", "0.5", "x")
    check(paper_values(made_up(ratio), "Fig 1", "heat"), A100=[1, 0.5, NOTHING, NOTHING], H100=[NOTHING] * 4)


@pytest.mark.parametrize(
    ("qualifier", "low", "high"),
    [("=", 5, 5), ("about", 5, 5), ("more than", 5, np.inf), ("up to", -np.inf, 5), ("exceeds", 5, np.inf)],
)
def test_a_bound_is_open_on_one_side(qualifier: str, low: float, high: float) -> None:
    table = made_up(("Fig 1", "A100", "OPT1", "a", "heat", "5", "%")).assign(qualifier=qualifier)
    check(paper_values(table, "Fig 1", "heat"), A100=[NOTHING, (low, high), NOTHING, NOTHING])


@pytest.mark.parametrize("changed", [{"gpu": "X900"}, {"gpu": "H100;"}, {"config": "OPT77"}])
def test_another_card_or_setting_than_the_papers_is_named_in_a_line(
    changed: dict[str, str], paper: pd.DataFrame
) -> None:
    row = paper[(paper["figure"] == "Fig 10") & (paper["metric"] == "Tensor Core utilization")][:1].assign(**changed)
    with pytest.raises(
        BadInput, match=f"claims: claim {row['id'].iloc[0]} speaks of '{(*changed.values(),)[0].split(';')[-1]}'"
    ):
        paper_values(row, "Fig 10", "Tensor Core utilization")
