"""Messages to the user: Python's logger "medddpm", which speaks on the first of torchrun's processes alone."""

from __future__ import annotations

import logging
import os


def is_first() -> bool:
    """Whether this is torchrun's first process, or the only one."""
    return os.environ.get("RANK", "0") == "0"


log = logging.getLogger("medddpm")
log.addFilter(lambda _record: is_first())
