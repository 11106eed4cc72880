"""nnU-Net's own benchmark, five epochs of one random batch on a GPU, by its trainer and by ours.

`PYTHONPATH=tests python -m nnunet_benchmark --out FOLDER`. Needs nnunetv2. The plans are those that nnU-Net's planners
make for the sizes of BraTS, four images a subject of 240 × 240 × 155 before cropping. nnU-Net compiles its network, as
it does by default. Prints each trainer's fastest epoch of 250 training and 50 validation steps. FOLDER keeps its JSON
in results.json, and its times in nnunet.csv, as figures/records/<card> has them.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pandas as pd
from helpers.nnunet import run, write_stubs

from medddpm.fast.clients.nnunet import FOLDER
from medddpm.measure.machine import MACHINE, machine_meta, of_machine, package_version
from medddpm.measure.tables import write_table
from study.records import schemas

DATASET = "Dataset902_Benchmark"
PLANNERS = {"ExperimentPlanner": "nnUNetPlans", "nnUNetPlannerResEncM": "nnUNetResEncUNetMPlans"}
TRAINERS = (
    "nnUNetTrainerBenchmark_5epochs_noDataLoading",
    "nnUNetTrainerAcceleratedBenchmark_5epochs_noDataLoading",
)
EPOCHS = 5  # as the trainers' names say
SUBJECTS = 100


def write_dataset(work: Path) -> None:
    """Everything that planning and a training without data read; the images are empty."""
    raw, preprocessed = work / "raw" / DATASET, work / "preprocessed" / DATASET
    for folder in (raw / "imagesTr", raw / "labelsTr", preprocessed):
        folder.mkdir(parents=True)
    for i in range(SUBJECTS):
        empty = nib.Nifti1Image(np.zeros((4, 4, 4), np.uint8), np.eye(4))
        for channel in range(4):
            nib.save(empty, raw / "imagesTr" / f"case_{i:03d}_{channel:04d}.nii.gz")
        nib.save(empty, raw / "labelsTr" / f"case_{i:03d}.nii.gz")
    described = {
        "channel_names": {str(i): name for i, name in enumerate(("T1", "T1ce", "T2", "FLAIR"))},
        "labels": {"background": 0, "edema": 1, "core": 2, "enhancing": 3},
        "numTraining": SUBJECTS,
        "file_ending": ".nii.gz",
        "overwrite_image_reader_writer": "NibabelIO",
    }
    statistics = {"max": 1.0, "mean": 0.0, "median": 0.0, "min": -1.0, "percentile_00_5": -1.0, "std": 1.0}
    found = {
        "spacings": [[1.0, 1.0, 1.0]] * SUBJECTS,
        "shapes_after_crop": [[140, 171, 136]] * SUBJECTS,
        "median_relative_size_after_cropping": 0.9,
        "foreground_intensity_properties_per_channel": {
            str(i): {**statistics, "percentile_99_5": 1.0} for i in range(4)
        },
    }
    for folder in (raw, preprocessed):
        (folder / "dataset.json").write_text(json.dumps(described))
    (preprocessed / "dataset_fingerprint.json").write_text(json.dumps(found))


def benchmark(work: Path, planner: str, trainer: str) -> dict[str, Any]:
    """The record that nnU-Net's trainer writes of one run, and what `NNUNET` has of the run's origin."""
    plans = PLANNERS[planner]
    command = ["nnUNetv2_train", DATASET, "3d_fullres", "0", "-tr", trainer, "-p", plans]
    run(work, command, trainers=str(FOLDER))
    path = work / "results" / DATASET / f"{trainer}__{plans}__3d_fullres" / "fold_0" / "benchmark_result.json"
    (record,) = json.loads(path.read_text()).values()
    meta = machine_meta()
    return {**record, "date": meta["date"], **of_machine(meta), "nnunetv2": package_version("nnunetv2")}


def plan(work: Path, planners: Collection[str]) -> dict[str, dict[str, Any]]:
    """By planner the plan for the full resolution; and what of preprocessing a training reads is then there."""
    commands = [["nnUNetv2_plan_experiment", "-d", "902", "-pl", planner] for planner in planners]
    run(work, *commands, trainers=str(FOLDER))
    plans = {}
    for planner in planners:
        file = work / "preprocessed" / DATASET / f"{PLANNERS[planner]}.json"
        plans[planner] = configuration = json.loads(file.read_text())["configurations"]["3d_fullres"]
        data = work / "preprocessed" / DATASET / configuration["data_identifier"]
        data.mkdir(exist_ok=True)
        (data / "case_000.b2nd").touch()  # by which nnU-Net knows the kind of its files
    return plans


def table(records: Sequence[Mapping[str, Any]], plans: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """nnU-Net's records as a table, schema `NNUNET`.

    Args:
        records: what `benchmark` returns, with "planner" and "trainer"; of the origin what there is.
        plans: what `plan` returns.
    """
    rows = []
    for record in records:
        plan = plans[record["planner"]]
        rows.append(
            {
                "planner": record["planner"],
                "network": plan["architecture"]["network_class_name"].rpartition(".")[2],
                "patch": "x".join(map(str, plan["patch_size"])),
                "batch": plan["batch_size"],
                "trainer": record["trainer"],
                "epochs": EPOCHS,
                "fastest_s": round(record["fastest_epoch"], 3),
                **{name: record.get(name) for name in ("date", *MACHINE, "nnunetv2")},
            }
        )
    return pd.DataFrame(rows, columns=list(schemas.NNUNET.columns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of results.json and nnunet.csv")
    parser.add_argument("--planner", choices=PLANNERS, action="append", help="one of them; all by default")
    parser.add_argument("--work", type=Path, default=Path("runs/nnunet_benchmark"), help="emptied first")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    write_dataset(work)
    write_stubs(work / "stubs", "timm", "SimpleITK")
    arguments.out.mkdir(parents=True, exist_ok=True)
    records: list[dict[str, Any]] = []
    meta = machine_meta(["python", "-m", "nnunet_benchmark"])
    plans = plan(work, arguments.planner or PLANNERS)
    for planner, configuration in plans.items():
        print(f"{planner}: patch {configuration['patch_size']}, batch {configuration['batch_size']}", flush=True)
        for trainer in TRAINERS:
            records.append({"planner": planner, "trainer": trainer, **benchmark(work, planner, trainer)})
            print(f"  {trainer}: {records[-1]['fastest_epoch']} s", flush=True)
            (arguments.out / "results.json").write_text(json.dumps(records, indent=2))
            write_table(table(records, plans), arguments.out / "nnunet.csv", schemas.NNUNET, meta)


if __name__ == "__main__":
    main()
