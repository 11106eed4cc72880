"""The verdicts: a figure of those that are counted; in HTML a square for each claim, and the rows that squares link."""

from __future__ import annotations

import re
from html import escape

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.figures.style import name_rows, new_figure, say

STATUS_COLOURS = {
    "reproduced": "#117733",
    "differs": "#CC6677",
    "checked_against_source": "#88CCEE",
    "same_setting_or_name": "#332288",
    "proxy": "#DDCC77",
    "not_measurable": "#BBBBBB",
}
"""Out of Tol's muted scheme (https://sronpersonalpages.nl/~pault/), which colour-blind readers tell apart; none is a
setting's colour."""

CARDS = {"H100": "the H100", "A100": "the A100", "V100": "the V100", "": "several cards"}
_SQUARE = "display:inline-block;width:13px;height:13px;margin:1px;border-radius:2px;vertical-align:middle"


_CELL = "padding:3px 8px 3px 0;text-align:left;vertical-align:top;border-bottom:1px solid rgba(128,128,128,0.3)"
_WIDTHS = {
    "claim": 5,
    "verdict": 12,
    "what the paper states": 21,
    "paper": 9,
    "ours": 9,
    "step": 8,
    "beside": 9,
    "why": 27,
}


def counted_figure(counted: pd.DataFrame) -> Figure:
    """Draws a square for each counted number, once for each view, by the paper's figures; those reproduced first.

    Args:
        counted: a row a number: id, figure, claim (its words), paper, then our number and its verdict in the window
            (window, window_status) and in the step (step, step_status); either "reproduced" or "differs".
    """
    names = sorted(counted["figure"].unique(), key=lambda name: [int(n) for n in re.findall(r"\d+", name)] or [99])
    figure = new_figure(height=0.9 + 0.19 * len(names))
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    for axis, (view, title) in zip(
        axes, {"window": "in the paper's window", "step": "over a whole step"}.items(), strict=True
    ):
        reproduced = counted[f"{view}_status"] == "reproduced"
        axis.set_title(f"{title}: {reproduced.sum()} of {len(counted)} reproduced", loc="left")
        for row, name in enumerate(names):
            of_figure = counted[counted["figure"] == name].sort_values(f"{view}_status", ascending=False, kind="stable")
            for place, claim in enumerate(of_figure.to_dict("records")):
                status = claim[f"{view}_status"]
                (mark,) = axis.plot([place], [row], "s", markersize=8, color=STATUS_COLOURS[status])
                say(mark, f"{claim['id']} {claim['claim']}: paper {claim['paper']}, here {claim[view]}, {status}")
        axis.set_xticks([])
        axis.tick_params(axis="y", length=0)
        axis.spines[:].set_visible(False)
    name_rows(axes[0], names)
    axes[0].set_xlim(-0.7, counted.groupby("figure").size().max())
    handles = [
        Line2D([], [], linestyle="", marker="s", markersize=8, color=STATUS_COLOURS[status], label=status)
        for status in ("reproduced", "differs")
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


def squares(claims: pd.DataFrame) -> str:
    """Returns a row of squares for each card that the paper speaks of, and a legend of their colours.

    Args:
        claims: a row a claim: id, gpu, claim (its words), paper, ours and status.

    Returns:
        HTML. A square links to its claim's row, #P001; on hover it shows the claim, both values and the verdict.
    """
    of_card = claims["gpu"].where(claims["gpu"].isin(list(CARDS)), "")
    parts = ['<div class="squares" style="line-height:1.25">']
    for card, title in CARDS.items():
        rows = claims[of_card == card]
        inside = "".join(_squares(rows[rows["status"] == status], status) for status in STATUS_COLOURS)
        parts.append(f'<p style="margin:0.4em 0"><strong>{escape(title)}</strong> ({len(rows)})<br>{inside}</p>')
    counts = claims["status"].value_counts()
    legend = " &nbsp; ".join(
        f'<span style="white-space:nowrap">{_chip(status)} {counts.get(status, 0)} {_words(status)}</span>'
        for status in STATUS_COLOURS
    )
    return "\n".join([*parts, f'<p style="margin:0.6em 0">{legend}</p>', "</div>"])


def rows(claims: pd.DataFrame) -> str:
    """Returns a table with a row for each claim, to which the claim's number links.

    Args:
        claims: a row a claim: id, status, claim, where, qualifier, paper, unit, ours, card, step, beside and reason.

    Returns:
        HTML, the verdict in the second column, and 1150 pixels wide at most.
    """
    columns = "".join(f'<col style="width:{width}%">' for width in _WIDTHS.values())
    head = "".join(f'<th scope="col" style="text-align:left">{name}</th>' for name in _WIDTHS)
    lines = [
        '<div class="claims" tabindex="0" role="region" aria-label="all claims" style="overflow-x:auto">',
        '<table style="table-layout:fixed;width:100%;min-width:840px;max-width:1150px;font-size:12px;'
        f'overflow-wrap:anywhere;text-align:left"><colgroup>{columns}</colgroup>',
        f"<thead><tr>{head}</tr></thead><tbody>",
    ]
    for claim in claims.fillna("").to_dict("records"):
        cells = (
            f"{_chip(claim['status'])} {_words(claim['status'])}",
            f"{escape(claim['claim'])} ({escape(claim['where'])})",
            escape(" ".join(str(claim[k]) for k in ("qualifier", "paper", "unit") if claim[k] not in ("", "="))),
            escape(f"{claim['card']}{': ' if claim['card'] else ''}{claim['ours'] or '–'}"),
            *(escape(str(claim[k]) or "–") for k in ("step", "beside")),
            re.sub("`(.+?)`", r"<code>\1</code>", escape(claim["reason"])),
        )
        inside = "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells)
        name = escape(claim["id"])
        lines.append(f'<tr id="{name}"><th scope="row" style="{_CELL}">{name}</th>{inside}</tr>')
    return "\n".join([*lines, "</tbody></table></div>"])


def _words(status: str) -> str:
    return status.replace("_", " ")


def _chip(status: str) -> str:
    return f'<span style="{_SQUARE};background:{STATUS_COLOURS[status]}"></span>'


def _squares(rows: pd.DataFrame, status: str) -> str:
    style = f"{_SQUARE};background:{STATUS_COLOURS[status]}"
    ours = rows["ours"].astype(object).where(rows["ours"].notna(), "–")
    columns = zip(rows["id"], rows["claim"], rows["paper"], ours, strict=True)
    titles = [(i, f"{i} {claim}: paper {paper}, here {value}, {_words(status)}") for i, claim, paper, value in columns]
    return "".join(
        f'<a href="#{escape(i)}" title="{escape(words)}" aria-label="{escape(words)}" style="{style}"></a>'
        for i, words in titles
    )
