"""A record is measured anew or left alone: `figures/records/SHA256SUMS` tells one that was edited."""

from __future__ import annotations

import hashlib

from helpers.repository import ROOT

RECORDS = ROOT / "figures" / "records"
ANEW = "after a measurement: cd figures/records && find */ -type f | sort | xargs sha256sum > SHA256SUMS"


def test_no_record_was_edited() -> None:
    lines = (RECORDS / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}
    assert sums
    edited = [
        name for name, digest in sums.items() if hashlib.sha256((RECORDS / name).read_bytes()).hexdigest() != digest
    ]
    assert edited == [], ANEW
