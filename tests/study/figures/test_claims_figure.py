"""The verdicts' picture: every claim once, by card, with its words."""

from __future__ import annotations

import re
from html import unescape

import pandas as pd

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
