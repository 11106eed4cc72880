"""The log of a run, where it cannot be written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import resource, sys
from pathlib import Path
from medddpm.training.progress import Report
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))  # a limit on the size of a file stands for the disk
with Report(Path(sys.argv[1]), "x", 0, 500, shown=False, logged=True) as report:
    for step in range(1, 501):
        report.losses([0.5], step)
print("to the end")
"""


def test_a_log_that_cannot_be_written_costs_no_training(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True)
    assert ended.stdout == "to the end\n"
    assert ended.stderr.count("the training goes on without its log") == 1
    assert "Traceback" not in ended.stderr
    assert "tensorboard" in ended.stderr
