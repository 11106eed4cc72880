"""A run starts from another model's weights: released, published, a checkpoint's or a run's."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from helpers.runs import newest

from medddpm.checkpoints.files import checkpoints_of, load_checkpoint, read_checkpoint
from medddpm.cli.main import main
from medddpm.data.layouts import BRATS, HEAD
from medddpm.errors import BadInput
from medddpm.training.config import TrainConfig
from medddpm.training.initial import read_initial
from medddpm.training.run import train

FROM = ["--size", "8", "--channels", "32", "--channel-mult", "1", "2", "--blocks", "2", "--norm-groups", "8"]
COMMON = ["--device", "cpu", "--quiet", "--sample-every", "0", "--accumulation", "1"]
PLAIN = ["--size", "8", *COMMON]


def command(head_folder: Path, out: Path, *words: str) -> int:
    return main(["train", "--data", str(head_folder), "--out", str(out), *words])


@pytest.fixture(scope="module")
def sources(head_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Four kinds of file with the weights of one run of three steps, whose average follows from step 0 on."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("sources")
    run = folder / "run"
    assert (
        command(head_folder, run, *FROM, *COMMON, "--ema-share", "0.1", "--learning-rate", "1e-2", "--steps", "12") == 0
    )
    assert main(["release", str(run), "--out", str(folder / "a.safetensors"), "--device", "cpu", "-q"]) == 0
    (checkpoint,) = checkpoints_of(run)
    content = read_checkpoint(checkpoint)
    published = {name: content[name] for name in ("step", "model", "ema", "config")}
    torch.save(published, folder / "published.pt")
    return {
        "run": run,
        "checkpoint": checkpoint,
        "released": folder / "a.safetensors",
        "published": folder / "published.pt",
    }


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    assert a.keys() == b.keys()
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", ["run", "checkpoint", "released", "published"])
def test_a_run_begins_with_the_averaged_weights_of_the_file(
    head_folder: Path, sources: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    """At a learning rate that changes no weight; its widths come from the file, none being given."""
    rate = ["--learning-rate", "1e-30"]
    assert command(head_folder, tmp_path, *PLAIN, *rate, "--init", str(sources[kind]), "--steps", "1") == 0
    content, expected = newest(tmp_path), load_checkpoint(sources[kind])
    for weights in ("model", "ema"):
        assert same(content[weights], expected.state_dict())
    assert (content["step"], len(content["losses"])) == (1, 1)
    assert all(moments["step"] == 1 for moments in content["optimizer"]["state"].values())
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["model_channels"], record["norm_groups"]) == (32, 8)
    file = sources["checkpoint" if kind == "run" else kind]
    assert record["init"] == f"{file.name}, SHA-256 {hashlib.sha256(file.read_bytes()).hexdigest()}"


def test_it_resumes_with_and_without_the_file(
    head_folder: Path, sources: dict[str, Path], tmp_path: Path, capsys
) -> None:
    init = ["--init", str(sources["released"])]
    assert command(head_folder, tmp_path / "a", *PLAIN, *init, "--steps", "1") == 0
    assert command(head_folder, tmp_path / "a", *PLAIN, *init, "--steps", "2") == 0
    assert command(head_folder, tmp_path / "a", *PLAIN, "--steps", "3") == 0
    assert command(head_folder, tmp_path / "b", *PLAIN, *init, "--steps", "3") == 0
    assert same(newest(tmp_path / "a")["model"], newest(tmp_path / "b")["model"])
    capsys.readouterr()
    assert command(head_folder, tmp_path / "a", *PLAIN, "--init", str(sources["checkpoint"]), "--steps", "4") == 1
    assert "its run was begun with --init a.safetensors, SHA-256" in capsys.readouterr().err
    assert command(head_folder, tmp_path / "a", *PLAIN, "--channels", "64", "--norm-groups", "8", "--steps", "4") == 1
    assert "its run was begun with --channels 32 (not 64)" in capsys.readouterr().err


def test_a_run_of_random_weights_does_not_go_on_from_a_file(
    head_folder: Path, sources: dict[str, Path], tmp_path: Path, capsys
) -> None:
    assert command(head_folder, tmp_path, *FROM, *COMMON, "--steps", "1") == 0
    capsys.readouterr()
    assert command(head_folder, tmp_path, *PLAIN, "--init", str(sources["released"]), "--steps", "2") == 1
    assert "its run was begun with --init none (not a.safetensors, SHA-256" in capsys.readouterr().err


def test_another_network_than_the_files_is_refused_in_a_line_that_names_all(
    head_folder: Path, sources: dict[str, Path], tmp_path: Path, capsys
) -> None:
    words = [*PLAIN, "--init", str(sources["released"]), "--steps", "1"]
    other = ["--channels", "64", "--channel-mult", "1", "--blocks", "2", "--prediction", "flow"]
    assert command(head_folder, tmp_path / "run", *words, *other) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert (
        "its model has --channels 32 (not 64), --channel-mult 1 2 (not 1), --prediction noise (not flow); leave" in line
    )
    assert not (tmp_path / "run").exists()
    assert command(head_folder, tmp_path / "run", *words, *FROM[2:]) == 0, "the same ones may be given"


def test_what_a_file_predicts_is_what_the_run_predicts(head_folder: Path, tmp_path: Path) -> None:
    first = [*FROM, *COMMON, "--prediction", "flow", "--steps", "1"]
    assert command(head_folder, tmp_path / "flow", *first) == 0
    words = [*PLAIN, "--recipe", "ours", "--volumes-a-step", "1", "--init", str(tmp_path / "flow"), "--steps", "1"]
    assert command(head_folder, tmp_path / "next", *words) == 0
    assert newest(tmp_path / "next")["prediction"] == "flow"


def test_a_model_of_other_volumes_is_refused(sources: dict[str, Path]) -> None:
    initial = read_initial(sources["released"])
    assert initial.fields(HEAD, {})["prediction"] == "noise"
    with pytest.raises(BadInput, match="it draws 1 channels for masks of 2, and the data has 4 and"):
        initial.fields(BRATS, {})


@pytest.mark.parametrize(
    ("name", "said"), [("nowhere.pt", "no such checkpoint"), ("damaged.safetensors", "it is damaged")]
)
def test_a_file_that_is_no_model_is_named(head_folder: Path, tmp_path: Path, capsys, name: str, said: str) -> None:
    (tmp_path / "damaged.safetensors").write_bytes(b"no weights")
    assert command(head_folder, tmp_path / "run", *PLAIN, "--init", str(tmp_path / name), "--steps", "1") == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
    assert name in line


def test_the_card_says_where_the_weights_started(head_folder: Path, sources: dict[str, Path], tmp_path: Path) -> None:
    init = ["--init", str(sources["published"])]
    assert command(head_folder, tmp_path / "run", *PLAIN, *init, "--steps", "1") == 0
    assert main(["release", str(tmp_path / "run"), "--out", str(tmp_path / "b.safetensors"), "-q"]) == 0
    digest = hashlib.sha256(sources["published"].read_bytes()).hexdigest()
    assert f"- **Finetuned from model:** published.pt, SHA-256 {digest}\n" in (tmp_path / "b.md").read_text()
    assert "none; trained from random weights" in sources["released"].with_suffix(".md").read_text()


def test_weights_that_the_configuration_does_not_name_are_refused(volumes, sources, tmp_path: Path) -> None:
    initial = read_initial(sources["checkpoint"])
    config = TrainConfig(**initial.fields(HEAD, {}), accumulation=1, sample_every=0)
    with pytest.raises(BadInput, match=r"--init: the configuration's init is 'step-0000012\.pt, SHA-256"):
        train(config, volumes, tmp_path / "a", 1, device="cpu", progress=False)
    unsaid = TrainConfig(**asdict(config) | {"init": ""})
    with pytest.raises(BadInput, match=r"the configuration's init is '', not 'step-0000012\.pt, SHA-256"):
        train(unsaid, volumes, tmp_path / "b", 1, initial=initial, device="cpu", progress=False)
