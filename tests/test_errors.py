"""What a user reads of an error: one line, whatever the file says."""

from __future__ import annotations

import pickle

import pytest

from medddpm.errors import LONGEST, BadArgument, BadInput, first_line


def test_it_is_one_line_for_a_terminal() -> None:
    error = BadInput("two  blanks\x1b[2J.nii", "holds 'a\nb\x00'", "mend it")
    assert str(error) == "two  blanks\\x1b[2J.nii: holds 'a b\\x00'; mend it"
    assert str(error).isprintable()
    assert isinstance(error, ValueError)


def test_what_a_file_says_is_clipped() -> None:
    assert len(str(BadInput("f", "x" * 10**6, "y" * 10**6))) <= 2 * LONGEST + 20


def test_an_arguments_line_names_it_as_the_caller_does() -> None:
    error = BadArgument("steps", "p", "r")
    assert (str(error), str(error.option)) == ("steps: p; r", "--steps: p; r")


@pytest.mark.parametrize("kind", [BadInput, BadArgument])
@pytest.mark.parametrize("path", ["a", "b\udcff"])
def test_it_comes_whole_out_of_another_process(path: str, kind: type[BadInput]) -> None:
    error = kind(path, "p", "r")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.path, again.problem, again.remedy, str(again)) == (path, "p", "r", str(error))


@pytest.mark.parametrize(
    ("said", "line"), [("no kernel\nat sm_60", "no kernel"), ("\n  late\n", "late"), (" ", "ValueError")]
)
def test_an_error_is_told_in_one_line(said: str, line: str) -> None:
    assert first_line(ValueError(said)) == line
