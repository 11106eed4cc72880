"""What the tests of `medddpm.measure` share: their processes are forks."""

from helpers.forks import _forks  # noqa: F401
