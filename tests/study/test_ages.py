"""A page says how many commits of the fast path came since a table was timed, and stays true while commits go on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from helpers.repository import ROOT

from study.numbers import ages, markers


def history(folder: Path, paths: tuple[str, ...]) -> list[str]:
    """Makes a repository with a commit to each of some files, one after another; returns the commits."""
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    commits = []
    for place, path in enumerate(paths):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(str(place))
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-q", "-m", path], check=True)
        head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
        commits.append(head.stdout.strip())
    return commits


def aged(root: Path, monkeypatch: pytest.MonkeyPatch, commits: dict[str, str]) -> None:
    """Gives the repository at `root` one table of times, measured at these commits on these days."""
    monkeypatch.setattr(ages, "_tables", lambda _root: iter([("a table", list(commits.items()))]))


def test_a_tables_age_is_counted_in_commits_of_the_fast_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = "medddpm/fast/layers.py"
    first, second, third, _, last = history(tmp_path, (fast, fast, "medddpm/kernels/norm.py", "README.md", fast))
    aged(tmp_path, monkeypatch, {first: "2026-11-25T10:00:00+00:00", second: "2026-11-27T10:00:00+00:00"})
    assert ages.rows(tmp_path, last) == [f"|a table|25 November to 27 November|`{first[:7]}` to `{second[:7]}`|2 to 3|"]
    assert ages.rows(tmp_path, third) == [
        f"|a table|25 November to 27 November|`{first[:7]}` to `{second[:7]}`|1 to 2|"
    ], "as it was at that commit, whatever came later"
    aged(tmp_path, monkeypatch, {"0" * 40: "2026-11-25T10:00:00+00:00", third: "2026-11-25T11:00:00+00:00"})
    assert ages.rows(tmp_path, last) == [f"|a table|25 November|`0000000` to `{third[:7]}`|1 and –|"]
    page = (
        f"up to <!--=ages.counted_to({first[:10]})-->`x`<!--=-->, <!--=ages.since(compared, {first[:10]})-->1<!--=-->"
    )
    assert ages.advanced(tmp_path, page) == page.replace(first[:10], last[:10])


def test_without_the_history_the_ages_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, shallow = tmp_path / "whole", tmp_path / "shallow"
    whole.mkdir()
    first, _ = history(whole, ("medddpm/fast/layers.py", "medddpm/fast/norm.py"))
    subprocess.run(["git", "clone", "-q", "--depth", "1", whole.as_uri(), str(shallow)], check=True)
    page = f"to <!--=ages.counted_to({first[:10]})-->then<!--=-->\n\n<!--=ages.rows({first[:10]})-->\n"
    page += "|a|\n|-|\n|b|\n<!--=-->\n"
    for root in (shallow, tmp_path):
        aged(root, monkeypatch, {first: "2026-11-25T10:00:00+00:00"})
        assert ages.advanced(root, page) == page
        assert markers.generated(root, page, Path("page.md")) == page


def test_the_pages_ages_end_at_a_commit_of_this_history() -> None:
    if not ages.whole(ROOT):
        pytest.skip("the history is not here")
    named = set(
        re.findall(
            r"<!--=ages\.\w+\(([0-9a-f]+)\)-->",
            "".join(path.read_text(encoding="utf-8") for path in markers.pages(ROOT)),
        )
    )
    assert len(named) == 1, "one commit for all pages"
    in_history = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", *named, "HEAD"]
    assert subprocess.run(in_history).returncode == 0, "python -m study numbers names another"
