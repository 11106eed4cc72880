"""The verdicts' picture: every claim once, by card, with its words."""

from __future__ import annotations

import re
from html import unescape

import nbformat
import pandas as pd
from helpers.repository import ROOT

from study.claims.verdicts import STATUSES
from study.figures import claims
from study.figures.style import SETTING_COLOURS

TABLE = pd.DataFrame(
    {
        "id": ["P001", "P002", "P003", "P004"],
        "gpu": ["all", "H100", "A100", "H100"],
        "claim": ['"over" 5 < x', "SM cycles", "IPC", "L2"],
        "paper": ["100", "0.39", "1.45", "64"],
        "ours": ["2.4", "0.42", None, "65"],
        "status": ["differs", "reproduced", "not_measurable", "differs"],
    }
)


def test_each_claim_is_a_square_that_leads_to_its_row_and_says_what_it_is() -> None:
    html = claims.squares(TABLE)
    assert re.findall(r'href="#(P\d+)"', html) == ["P002", "P004", "P003", "P001"], "by card, then by verdict"
    said = [unescape(words) for words in re.findall(r'title="([^"]*)"', html)]
    assert said[0] == "P002 SM cycles: paper 0.39, here 0.42, reproduced"
    assert said[2] == "P003 IPC: paper 1.45, here –, not measurable"
    assert said[3] == 'P001 "over" 5 < x: paper 100, here 2.4, differs'
    assert "2 differs" in html
    assert "0 proxy" in html


def test_the_audits_picture_shows_exactly_the_numbers_that_its_sentence_counts() -> None:
    cell = nbformat.read(ROOT / "notebooks" / "24_all_verdicts.ipynb", as_version=4).cells[0].source
    (sentence,) = re.findall(r"\n\n(In the paper's own .+?)\n\n", cell, re.DOTALL)
    counts = [int(number) for number in re.findall(r"-->(\d+)<!--", sentence)]
    marks = re.findall(
        r"<title>(P\d{3}) [^<]*?, (reproduced|differs)</title>", (ROOT / "figures" / "24_verdicts.svg").read_text()
    )
    assert len({identity for identity, _ in marks}) == counts[1]
    assert len(marks) == 2 * counts[1], "once in each view"
    assert [verdict for _, verdict in marks].count("reproduced") == counts[0] + counts[2]


def test_a_counted_number_is_a_square_in_each_view() -> None:
    both = {"figure": ["Fig 10", "Fig 8", "text", "Fig 8"], "window": "1", "step": "2"}
    verdicts = {"window_status": ["differs", "reproduced", "differs", "differs"], "step_status": "differs"}
    figure = claims.counted_figure(TABLE.assign(**both, **verdicts))
    window, step = figure.axes
    assert [text.get_text() for text in window.get_yticklabels()] == ["Fig 8", "Fig 10", "text"]
    said = [str(mark.get_gid()) for mark in window.lines]
    assert [words.split(": ", 1)[1].split()[0] for words in said] == ["P002", "P004", "P001", "P003"]
    assert said[0].endswith("P002 SM cycles: paper 0.39, here 1, reproduced")
    assert len(step.lines) == len(TABLE)
    assert step.get_title(loc="left") == "over a whole step: 0 of 4 reproduced"


def test_each_verdict_has_a_colour_that_is_no_settings() -> None:
    assert set(claims.STATUS_COLOURS) == set(STATUSES)
    assert not set(claims.STATUS_COLOURS.values()) & set(SETTING_COLOURS.values())


def test_each_claim_is_a_row_with_its_anchor_and_its_verdict_second() -> None:
    more = {
        "where": "Fig 8",
        "qualifier": "over",
        "unit": "x",
        "card": "H100",
        "step": None,
        "beside": None,
        "reason": "a < b",
    }
    html = claims.rows(TABLE.assign(**more))
    assert re.findall(r'<tr id="(P\d+)">', html) == list(TABLE["id"])
    row = html[html.index('id="P003"') : html.index('id="P004"')]
    cells = [unescape(re.sub("<.*?>", "", cell)).strip() for cell in re.findall(r"<t[dh].*?>(.*?)</t[dh]>", row)]
    assert cells == ["P003", "not measurable", "IPC (Fig 8)", "over 1.45 x", "H100: –", "–", "–", "a < b"]
    assert "max-width:1150px" in html


def test_html_in_any_column_is_text() -> None:
    names = ("id", "claim", "where", "qualifier", "paper", "unit", "ours", "card", "step", "beside", "reason")
    hostile = pd.DataFrame([{name: f"<i>{name}</i>" for name in names} | {"status": "differs", "gpu": "<i>gpu</i>"}])
    for html in (claims.rows(hostile), claims.squares(hostile)):
        assert "<i>" not in html
    assert all(f"<i>{name}</i>" in unescape(claims.rows(hostile)) for name in names)
