"""Programs that a signal ends, also where the tests were started with `nohup` or in the background of a script."""

import signal


def interruptible() -> None:
    """For a fork, which inherits that SIGINT and SIGHUP are ignored: heeds them as a Python of its own does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a program that it becomes is ended by it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
