"""What several test files share."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch
from helpers.gpu import lacking
from helpers.repository import SHARED

from medddpm.data.phantom import write_phantom
from medddpm.data.volumes import VolumeFolder

gc.set_threshold(10_000, 10, 10)  # Python 3.11's 700 has it search every few milliseconds of a test


def pytest_collection_finish() -> None:
    """What all imports made stays: no search for garbage goes through it again."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test whose mark `gpu` asks for more than this machine has."""
    for mark in item.iter_markers("gpu"):
        if reason := lacking(**mark.kwargs):
            pytest.skip(reason)


LONGEST = (
    "bench/test_run.py", "01_train.ipynb", "17_quality.ipynb", "test_main.py", "test_harness.py", "test_shipped.py",
    "test_trainer.py", "22_your_own_network.ipynb", "fast/test_networks.py", "fuzz/test_readers.py", "test_findings.py",
    "05_fig03_architecture.ipynb", "21_samplers.ipynb", "fast/test_unet.py", "test_compile.py", "test_project.py",
    "test_numbers.py", "compare/test_run.py", "test_parts.py", "test_release.py", "test_initial.py",
    "test_cuda_graphs.py", "test_recipes.py", "parity/test_run.py", "test_faults.py", "test_any_program.py",
    "test_kernels.py", "test_book.py", "checkpoints/test_files.py", "fast/test_step.py", "test_site.py",
    "test_sampling.py", "test_loops.py", "test_changed.py", "test_joint.py", "19_training_throughput.ipynb",
    "16_fast_path.ipynb", "23_brains.ipynb", "18_cuda_convnext.ipynb", "test_holdout.py", "test_judge.py",
    "test_brain_masks.py", "fast/test_graphs.py", "tests/test_gpu_tests.py", "test_monai_blocks.py", "test_style.py",
    "figures/test_quality.py", "generative/test_run.py", "quality/test_quality.py", "test_released.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with the files that take longest, so that the processes end at about the same time."""
    places = {name: place for place, name in enumerate(LONGEST)}
    of_file = {path: next((p for n, p in places.items() if path.as_posix().endswith(f"/{n}")), len(places))
               for path in {item.path for item in items}}  # fmt: skip
    items.sort(key=lambda item: of_file[item.path])


@pytest.fixture
def spec() -> Path:
    """The folder with the published names and the reference case; tests that need it are skipped without it."""
    folder = SHARED / "spec"
    if not folder.is_dir():
        pytest.skip("the specification's files are not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def head_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in the whole-head layout: three phantoms of 16³. Copy it before changing it."""
    root = tmp_path_factory.mktemp("with space") / "head"
    write_phantom(root, 3, (16, 16, 16))
    return root


@pytest.fixture
def volumes(head_folder: Path) -> VolumeFolder:
    """Those of `head_folder`, trained on at 8³."""
    return VolumeFolder(head_folder, (8, 8, 8))


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Volumes that a command prepares are kept for the session, not in the user's folder."""
    os.environ["MEDDDPM_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tiny networks are quicker on one core, and a process of their own then computes the same bits.

    Before each test, as another may have changed it.
    """
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
