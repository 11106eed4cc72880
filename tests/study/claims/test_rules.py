"""The tables that travel with the package: what they say of each claim, and that a wheel holds them."""

from __future__ import annotations

import fnmatch
import string
import tomllib

from helpers.repository import ROOT

from medddpm.study.claims import rules, takeaways
from medddpm.study.claims.findings import NO_COUNTERS
from medddpm.study.claims.paper import claims_of, paper_claims
from medddpm.study.claims.reasons import FACTS
from medddpm.study.records.tables import read_table


def test_every_claim_has_a_rule_for_the_settings_that_the_paper_names() -> None:
    paper = paper_claims(ROOT).set_index("id")["config"].fillna("")
    assert list(rules.by_id()) == list(paper.index)
    for claim in claims_of(paper_claims(ROOT)):
        if claim.rule.rule in rules.MEASURES and (said := paper[claim.id]) not in ("best", "all"):
            assert claim.rule.settings == tuple(said.split(";")), claim.id
        assert (claim.rule.form != "") == (claim.rule.against != ""), claim.id
        assert claim.rule.reason, claim.id
        assert claim.rule.differs or claim.rule.rule not in rules.MEASURES, claim.id


def test_templates_name_facts_that_there_are() -> None:
    rows = [rule for rule in rules.by_id().values() if rule.rule in rules.MEASURES]
    templates = {NO_COUNTERS, *(text for rule in rows for text in (rule.reason, rule.missing, rule.differs))}
    named = {name for text in templates for _, name, _, _ in string.Formatter().parse(text) if name}
    assert named == set(FACTS)


def test_bandwidths_of_the_papers_cards_are_its_own() -> None:
    paper = paper_claims(ROOT)
    said = paper[paper["metric"] == "memory bandwidth"].set_index("gpu")["value"].astype(float)
    ours = rules.cards()["bandwidth_gbps"]
    assert ours[said.index].to_dict() == said.to_dict()


def test_a_wheel_holds_the_tables() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    tables = {path.name for path in rules.HERE.iterdir() if path.suffix not in (".py", "")}
    assert tables == {"rules.csv", "cards.csv", "takeaways.csv"}
    assert all(any(fnmatch.fnmatch(name, p) for p in patterns["medddpm.study.claims"]) for name in tables)
    assert len(read_table(rules.HERE / "takeaways.csv", takeaways.TAKEAWAYS)) == 3
