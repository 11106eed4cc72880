"""Broken files of every kind: each is read or refused in one line, within 10 s and 2 GiB. `make fuzz` tries more."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fuzz.attack import CASES, attack
from fuzz.families import PROFILE, Family, all_names, families

MUTANTS = 60  # of each family in `make test`, the same each time
THOUSANDS = 5000  # of a profile's files together, in `make test-all`


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Family]:
    found = families(tmp_path_factory.mktemp("good"))
    assert list(found) == list(all_names())
    return found


@pytest.mark.parametrize("name", all_names())
def test_a_broken_file_is_read_or_refused(name: str, every: dict[str, Family], tmp_path: Path) -> None:
    family, answers = every[name], []

    @settings(
        max_examples=MUTANTS, derandomize=True, deadline=None, database=None, phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def tried(data: st.DataObject) -> None:
        answers.append(attack(family, data.draw(family.broken), tmp_path))

    tried()
    assert len(answers) >= MUTANTS // 2
    broken = [answer for answer in answers if answer != "read"]
    if name != "checkpoint-pickle":  # of opcodes in any order, which build no network
        assert len(broken) < len(answers), "every mutant was refused: is the good file good?"
    assert broken or name == "state-json", "no mutant was refused: are they broken?"  # a state that is none is no state


@pytest.mark.long
@pytest.mark.parametrize("name", ["trace", "program-trace", *PROFILE])
def test_thousands_of_broken_traces_are_read_or_refused(name: str, every: dict[str, Family], tmp_path: Path) -> None:
    answers = []

    @settings(
        max_examples=THOUSANDS // 3, derandomize=True, deadline=None, database=None, phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def tried(data: st.DataObject) -> None:
        answers.append(attack(every[name], data.draw(every[name].broken), tmp_path))

    tried()
    assert len(answers) > THOUSANDS // 6
    assert len(set(answers)) > 1, "all were read, or all refused"


CASES_KEPT = sorted(path for path in CASES.glob("*/*") if path.is_file())


@pytest.mark.parametrize("case", CASES_KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_found_once_stays_mended(case: Path, every: dict[str, Family], tmp_path: Path) -> None:
    attack(every[case.parent.name], case.read_bytes(), tmp_path)
