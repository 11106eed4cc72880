"""What a user reads of an error: one line, whatever the file says."""

from __future__ import annotations

import pickle

import pytest

from medddpm.errors import LONGEST, BadInput


def test_it_is_one_line_for_a_terminal() -> None:
    error = BadInput("two  blanks\x1b[2J.nii", "holds 'a\nb\x00'", "mend it")
    assert str(error) == "two  blanks\\x1b[2J.nii: holds 'a b\\x00'; mend it"
    assert str(error).isprintable()
    assert isinstance(error, ValueError)


def test_what_a_file_says_is_clipped() -> None:
    assert len(str(BadInput("f", "x" * 10**6, "y" * 10**6))) <= 2 * LONGEST + 20


@pytest.mark.parametrize("path", ["a", "b\udcff"])
def test_it_comes_whole_out_of_another_process(path: str) -> None:
    error = BadInput(path, "p", "r")
    again = pickle.loads(pickle.dumps(error))
    assert (again.path, again.problem, again.remedy, str(again)) == (path, "p", "r", str(error))
