"""The tables that travel with the package: what they say of each claim, and that a wheel holds them."""

from __future__ import annotations

import re
import string

from helpers.repository import ROOT

from study.claims import rules
from study.claims.findings import NO_COUNTERS
from study.claims.paper import claims_of, paper_claims
from study.claims.reasons import FACTS


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


def test_a_repeated_claim_repeats_an_earlier_one() -> None:
    paper = paper_claims(ROOT).set_index("id")
    repeats = {name: rule.same_as for name, rule in rules.by_id().items() if rule.same_as}
    assert repeats == {"P088": "P083", "P090": "P085", "P132": "P003", "P133": "P004", "P200": "P118"}
    said = ["gpu", "config", "subject", "metric", "value", "unit"]
    for name, first in repeats.items():
        again = paper.loc[name, said].copy()
        if name == "P200":  # of both cards, rounded
            assert (again["gpu"], again["value"], paper.loc[first, "value"]) == ("A100;H100", "1.4", "1.44")
            again["gpu"], again["value"] = "H100", "1.44"
            again["metric"] = again["metric"].removesuffix(", both cards")
        assert list(again) == list(paper.loc[first, said])
        own, other = rules.by_id()[name], rules.by_id()[first]
        assert (own.rule, own.of, own.launches, own.settings) == (other.rule, other.of, other.launches, other.settings)


def test_sources_are_of_table_1_and_say_where_they_were_read() -> None:
    table_1 = [name for name, rule in rules.by_id().items() if rule.rule == "card"]
    assert len(table_1) == 42
    assert set(rules.sources()) <= set(table_1)
    assert all(re.match(r"https?://\S+$", row["read_at"]) for row in rules.sources().values())
    own = re.compile(r"https://([\w-]+\.)?nvidia\.com/")
    repeated = [name for name, row in rules.sources().items() if not own.match(row["read_at"])]
    assert repeated == ["P012", "P013", "P023", "P024", "P025", "P042"], "what NVIDIA's own pages did not tell"


def test_every_card_of_the_paper_says_why_it_may_be_absent() -> None:
    cards = rules.cards()
    assert (cards["absent"].notna() == cards["stands_in_for"].isna()).all()
    assert "CUDA 13 dropped Volta" in cards.loc["V100", "absent"]
