"""Programs that a signal ends, also where the tests were started with `nohup` or in the background of a script."""

import signal


def interruptible() -> None:
    """For `Popen(preexec_fn=…)` and after a fork: a program inherits that SIGINT and SIGHUP are ignored."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
