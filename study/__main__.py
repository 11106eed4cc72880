"""`python -m study`: the book's measurements, and the book itself."""

from typing import NoReturn

from medddpm.runtime.exits import end, end_when_told  # nothing that takes time to import: signals come first


def run() -> NoReturn:
    """Runs the command that the process was started with, and ends it."""
    end_when_told()
    from study.cli.main import main

    end(main())


if __name__ == "__main__":
    run()
