"""What the tests of the study share: their processes are forks."""

from helpers.forks import _forks  # noqa: F401
