"""From a run's folder to a model that travels: three files that agree, and a recommendation that is followed."""

from __future__ import annotations

import functools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from medddpm.checkpoints.files import read_checkpoint, save_checkpoint
from medddpm.cli.main import main
from medddpm.data.phantom import Phantom
from medddpm.data.volumes import VolumeFolder
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.sampling import recommended, sample_to_files
from medddpm.training import release
from medddpm.training.config import TrainConfig
from medddpm.training.release import RECORDED, card_of, release_run, training_record
from medddpm.training.run import train

CONFIG = TrainConfig(
    image_size=64, model_channels=32, channel_mult=(1, 1, 2), accumulation=1, sample_every=0, ema_start=1
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three steps on two phantoms."""
    out = tmp_path_factory.mktemp("with space") / "run"
    train(CONFIG, Phantom(2, (16, 16, 16), "flair"), out, 3, device="cpu", progress=False)
    return out


@pytest.fixture(scope="module")
def released(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("released") / "head-16.safetensors"
    files = release_run(run, out, sampler="ddim", steps=3, held_out=4, about="Three steps.", device="cpu")
    assert [file.name for file in files] == ["head-16.safetensors", "head-16.csv", "head-16.md"]
    return out


def test_the_file_says_what_it_was_trained_on_and_how_to_sample(released: Path) -> None:
    content = read_checkpoint(released)
    training = content["training"]
    assert training["phantom"] == {"contrast": "flair", "seed": 0, "count": 2}
    assert training["learning_rate"] == CONFIG.learning_rate
    assert "sample_every" not in training, "no matter of what was computed"
    assert recommended(content) == content["sampling"] == {"sampler": "ddim", "steps": 3}
    assert recommended({}) == {"sampler": "ddpm", "steps": None}
    assert content["about"] == "Three steps."


def test_it_is_measured_on_subjects_it_never_saw(released: Path) -> None:
    evaluation = read_checkpoint(released)["evaluation"]
    assert (evaluation["seed"], evaluation["count"]) == (1, 4)
    rows = {(row["metric"], row["tissue"]): row for row in evaluation["rows"]}
    brain = rows["dice_reference", "brain"]
    assert brain["low"] <= brain["value"] <= brain["high"] <= 1
    assert rows["dice", "brain"]["value"] < brain["value"], "after three steps"


@pytest.mark.parametrize(
    ("held_out", "seed"),
    [([], 1), (["phantom flair, seed 1, subject 0", "phantom flair, seed 1, subject 1"], 2), (None, 1)],
)
def test_it_is_not_measured_on_subjects_by_which_a_run_may_have_been_chosen(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_out: list[str] | None, seed: int
) -> None:
    shutil.copytree(run, tmp_path / "run")
    record = tmp_path / "run" / "run.json"
    known = json.loads(record.read_text())
    del known["held_out"]  # as in a run of an earlier version
    record.write_text(json.dumps(known if held_out is None else known | {"held_out": held_out}))
    measured: list[int] = []

    def evaluation(_: object, subjects: Phantom, *options: object) -> dict[str, object]:
        measured.append(subjects.seed)
        return {"seed": subjects.seed, "count": len(subjects), "rows": []}

    monkeypatch.setattr(release, "evaluation", evaluation)
    release_run(tmp_path / "run", tmp_path / "a.safetensors", held_out=1, device="cpu")
    assert measured == [seed]


def test_the_card_tells_the_numbers_of_the_file_and_the_record(released: Path, run: Path) -> None:
    card, record = released.with_suffix(".md").read_text(), pd.read_csv(released.with_suffix(".csv"))
    assert card == card_of("head-16", released, released.with_suffix(".csv"))
    assert record["step"].tolist() == [1, 2, 3]
    assert f"{released.stat().st_size} bytes in bfloat16" in card
    state = read_checkpoint(released)["ema"]
    parameters = sum(weight.numel() for name, weight in state.items() if name.startswith("denoise_fn."))
    assert f"{parameters} parameters" in card
    assert "| steps | 3 |" in card
    assert "ddim with 3 steps" in card
    assert f"to\n{record['loss'].iloc[-1]:.4f} (over the last" in card
    assert "16×16×16" in card
    assert "2 synthetic subjects (`medddpm.data.phantom`, flair, seed 0)" in card
    headings = re.findall(r"^## (.+)$", card, re.MULTILINE)
    first_headings = ["Model Details", "Uses", "Bias, Risks, and Limitations", "How to Get Started with the Model"]
    assert headings == [*first_headings, "Training Details", "Evaluation", "Technical Specifications", "Citation"]
    assert "nan" not in card
    assert "None" not in card


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("ddim", 3)),
        ({"steps": 2}, ("ddim", 2)),
        ({"sampler": "dpm++", "steps": 3}, ("dpm++", 3)),
        ({"sampler": "dpm++"}, ("dpm++", 250)),
    ],
)
def test_what_the_file_recommends_is_what_it_is_drawn_with(
    released: Path, tmp_path: Path, head_folder: Path, monkeypatch: pytest.MonkeyPatch, options, expected
) -> None:
    calls = []

    def sample(self: GaussianDiffusion, mask: torch.Tensor, steps: int | None, sampler: str, **_: object):
        calls.append((sampler, steps))
        return torch.zeros_like(mask[:, :1])

    monkeypatch.setattr(GaussianDiffusion, "sample", sample)
    mask = min((head_folder / "mask").iterdir())
    sample_to_files(released, mask, tmp_path / "volume.nii", device="cpu", **options)
    assert calls == [expected]


def test_a_long_record_is_thinned_to_means() -> None:
    losses = np.random.default_rng(0).random(2 * RECORDED + 7).astype(np.float32)
    table = training_record(losses)
    assert len(table) <= RECORDED
    assert table["step"].iloc[-1] == len(losses)
    assert table["step"].is_monotonic_increasing
    spans = np.diff(table["step"], prepend=0)
    assert set(spans[:-1]) == {spans[0]}
    assert (table["loss"] * spans).sum() == pytest.approx(losses.sum(), rel=1e-5)


def test_other_people_s_volumes_are_not_measured_and_not_named(
    head_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(CONFIG, VolumeFolder(head_folder, (16, 16, 16)), run, 1, device="cpu", progress=False)
    assert main(["release", str(run), "--out", str(tmp_path / "mine.safetensors"), "-q", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "mine.md")
    content = read_checkpoint(tmp_path / "mine.safetensors")
    assert "evaluation" not in content
    assert content["training"]["volumes"] == 3
    card = (tmp_path / "mine.md").read_text()
    assert "3 volumes of the trainer's own" in card
    assert "phantom_0000" not in card


def test_a_card_says_of_licence_and_author_what_the_trainer_says(run: Path, tmp_path: Path, capsys) -> None:
    """And nothing else: this package's own licence and authors are not those of weights that somebody trained."""
    words = ["release", str(run), "--held-out", "0", "--device", "cpu", "-q", "--out"]
    assert main([*words, str(tmp_path / "silent.safetensors")]) == 0
    card = (tmp_path / "silent.md").read_text()
    assert card.startswith("---\nlibrary_name: medddpm\n"), "a card without a licence has no such field"
    assert "- **License:** not said\n" in card
    assert "- **Developed by:** not said\n" in card
    for claim in ("apache", "Apache", "authors", "this repository", "this book", "the book", "two CPU cores"):
        assert claim not in card
    options = ["--license", "cc-by-nc-4.0", "--author", "A. Reader, Århus"]
    assert main([*words, str(tmp_path / "told.safetensors"), *options]) == 0
    card = (tmp_path / "told.md").read_text("utf-8")
    assert card.startswith("---\nlicense: cc-by-nc-4.0\nlibrary_name: medddpm\n")
    assert "- **Developed by:** A. Reader, Århus\n" in card
    assert "- **License:** cc-by-nc-4.0\n" in card
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([*words, str(tmp_path / "m.safetensors"), "--license", "My: own"])
    assert ended.value.code == 2
    assert "argument --license: 'My: own' is no licence's identifier" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["nowhere", "--out", "m.safetensors"], [".", "--out", "m.safetensors"]])
def test_a_folder_that_is_no_run_is_said(arguments: list[str], tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["release", *arguments]) == 1
    assert "no run's folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_name_tells_the_format(run: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"name ends in \.safetensors"):
        release_run(run, tmp_path / "model.pt", device="cpu")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_utf8_is_refused_and_not_the_file_called_damaged(run: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--about: it is not in UTF-8"):
        release_run(run, tmp_path / "m.safetensors", about="\udcff", device="cpu")
    for use in (functools.partial(release_run, run), read_checkpoint):
        (tmp_path / "\udcff.safetensors").touch()
        with pytest.raises(BadInput, match=r"\\udcff\.safetensors: it is not in UTF-8"):
            use(tmp_path / "\udcff.safetensors")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "there", [pytest.param(False, id="anew"), pytest.param(True, marks=pytest.mark.long, id="over another")]
)
@pytest.mark.parametrize("function", ["evaluation", "training_record", "model_card"])
def test_a_release_that_fails_changes_nothing_and_can_be_repeated(
    run: Path, released: Path, tmp_path: Path, monkeypatch, there: bool, function: str
) -> None:
    """Wherever it is interrupted; no weights are beside another release's card, and none stand alone."""
    if there:
        for path in released.parent.iterdir():
            shutil.copy(path, tmp_path)
    before = contents(tmp_path)
    again = functools.partial(
        release_run, run, tmp_path / released.name, sampler="ddim", steps=2, held_out=2, device="cpu", force=there
    )

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(f"medddpm.training.release.{function}", interrupted)
        with pytest.raises(KeyboardInterrupt):
            again()
    assert contents(tmp_path) == before
    again()
    after = contents(tmp_path)
    assert len(after) == 3
    assert after != before
    written = card_of("head-16", tmp_path / "head-16.safetensors", tmp_path / "head-16.csv")
    assert (tmp_path / "head-16.md").read_text() == written


@pytest.mark.parametrize(
    ("sampler", "steps", "problem"),
    [
        ("ddim", 251, "steps: ddim cannot take 251; choose 1 to 250"),
        ("ddim", 0, "steps: ddim cannot take 0; choose 1 to 250"),
        ("ddpm", 20, "steps: ddpm takes all 250 steps, not 20; for fewer choose another sampler"),
        ("euler", 20, "sampler: there is no 'euler'; choose one of ddpm, ddim, dpm++, sde-dpm++"),
    ],
)
def test_what_cannot_be_drawn_with_is_not_recommended(
    run: Path, tmp_path: Path, sampler: str, steps: int, problem: str
) -> None:
    with pytest.raises(BadInput) as refused:
        release_run(run, tmp_path / "m.safetensors", sampler=sampler, steps=steps, held_out=0, device="cpu")
    assert str(refused.value) == problem
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("sampler", "steps"), [("ddpm", 250), ("sde-dpm++", 20)])
def test_without_a_number_of_steps_it_recommends_the_samplers_own(
    run: Path, tmp_path: Path, sampler: str, steps: int
) -> None:
    out = tmp_path / "m.safetensors"
    assert main(["release", str(run), "--out", str(out), "--sampler", sampler, "--held-out", "0", "-q"]) == 0
    assert read_checkpoint(out)["sampling"] == {"sampler": sampler, "steps": steps}


def test_a_damaged_checkpoint_is_passed_over_with_a_warning_and_left_where_it_is(
    run: Path, tmp_path: Path, caplog
) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    newer = copied / "checkpoints" / "step-0000004.pt"
    newer.write_bytes(b"damaged")
    release_run(copied, tmp_path / "m.safetensors", held_out=0, device="cpu")
    assert "step-0000004.pt: it is damaged" in caplog.text
    assert "step-0000003.pt is released" in caplog.text
    assert newer.exists()
    shutil.rmtree(copied / "checkpoints")
    whole = torch.load(run / "checkpoints" / "step-0000003.pt", weights_only=True)
    integers = torch.zeros(3, dtype=torch.int32)
    others = ({"losses": "x"}, {"losses": integers}, {"step": "x"}, {"step": 9}, {"layout": "another"}, {"layout": []})
    for content in ({"ema": {"a": torch.zeros(1)}}, *({**whole, **other} for other in others)):
        save_checkpoint(copied / "checkpoints" / "step-0000001.pt", content)
        with pytest.raises(BadInput, match=r"step-0000001\.pt: it holds no state of a training run"):
            release_run(copied, tmp_path / "n.safetensors", held_out=0, device="cpu")


def test_a_run_keeps_to_its_widths(run: Path) -> None:
    volumes = Phantom(2, (16, 16, 16), "flair")
    assert len(train(CONFIG, volumes, run, 3, device="cpu", progress=False)) == 3
    other = TrainConfig(**{**vars(CONFIG), "channel_mult": (1, 2, 2)})
    with pytest.raises(BadInput, match=r"--channel-mult 1 1 2 \(not 1 2 2\)"):
        train(other, volumes, run, 3, device="cpu", progress=False)
