"""The verdicts as a picture in HTML: a square a claim, which tells the claim when pointed at and leads to its row."""

from __future__ import annotations

from html import escape

import pandas as pd

STATUS_COLOURS = {
    "reproduced": "#117733",
    "differs": "#CC6677",
    "checked_against_source": "#88CCEE",
    "proxy": "#DDCC77",
    "not_measurable": "#BBBBBB",
}
"""Out of Tol's muted scheme (https://sronpersonalpages.nl/~pault/), which colour-blind readers tell apart; none is a
setting's colour."""

CARDS = {"H100": "the H100", "A100": "the A100", "V100": "the V100", "": "several cards"}
_SQUARE = "display:inline-block;width:13px;height:13px;margin:1px;border-radius:2px;vertical-align:middle"


def squares(claims: pd.DataFrame) -> str:
    """A row of squares for each card that the paper speaks of, and what their colours mean.

    Args:
        claims: a row a claim: id, gpu, claim (its words), paper, ours and status.

    Returns:
        HTML. A square's link is its claim's anchor, #P001; pointed at, it says the claim, both values and the verdict.
    """
    of_card = claims["gpu"].where(claims["gpu"].isin(list(CARDS)), "")
    parts = ['<div style="line-height:1.25">']
    for card, title in CARDS.items():
        rows = claims[of_card == card]
        inside = "".join(_squares(rows[rows["status"] == status], status) for status in STATUS_COLOURS)
        parts.append(f'<p style="margin:0.4em 0"><strong>{escape(title)}</strong> ({len(rows)})<br>{inside}</p>')
    counts = claims["status"].value_counts()
    legend = " &nbsp; ".join(
        f'<span style="{_SQUARE};background:{colour}"></span> {counts.get(status, 0)} {status.replace("_", " ")}'
        for status, colour in STATUS_COLOURS.items()
    )
    return "\n".join([*parts, f'<p style="margin:0.6em 0">{legend}</p>', "</div>"])


def _squares(rows: pd.DataFrame, status: str) -> str:
    style = f"{_SQUARE};background:{STATUS_COLOURS[status]}"
    ours = rows["ours"].astype(object).where(rows["ours"].notna(), "–")
    columns = zip(rows["id"], rows["claim"], rows["paper"], ours, strict=True)
    said = [
        (i, f"{i} {claim}: paper {paper}, here {own}, {status.replace('_', ' ')}") for i, claim, paper, own in columns
    ]
    return "".join(
        f'<a href="#{i}" title="{escape(words)}" aria-label="{escape(words)}" style="{style}"></a>' for i, words in said
    )
