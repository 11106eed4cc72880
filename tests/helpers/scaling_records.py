"""A record of scaling with times of one's choice."""

from __future__ import annotations

import dataclasses

import pandas as pd

from medddpm.measure.machine import of_machine
from medddpm.measure.tables import table_of
from medddpm.training.config import TrainConfig
from study.records import schemas
from study.scaling.cases import Case
from study.scaling.results import _row

META = {"gpu": "cpu", "driver": None, "cudnn": None, "torch": "2", "commit": "c", "command": "test"}


def record(**times: float) -> pd.DataFrame:
    """A table of FAST's times by measure, GPUs, volumes and dtype: `step_2_1_fp32`."""
    rows = []
    for name, ms in times.items():
        measure, gpus, micro_steps, dtype = name.split("_")
        place = Case("med-ddpm", "FAST", int(gpus), measure, int(micro_steps), dtype if dtype != "none" else None)
        if measure == "step" and place.gradient_dtype:
            place = dataclasses.replace(place, bucket_mib=TrainConfig.bucket_mib)
        found = {"ms": [ms], "alone_ms": 0.95 * ms, "peak_bytes": None, "sent_bytes": 2**20, "date": "2026-01-01"}
        rows.append(_row({**found, "case": dataclasses.asdict(place), "machine": of_machine(META)}))
    return table_of(rows, schemas.SCALING)
