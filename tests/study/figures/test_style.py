"""The pictures: their data, their looks against stored images, and their bytes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.figures import readable
from matplotlib.figure import Figure

from medddpm.data.volumes import VolumeFolder
from medddpm.switches import SETTINGS
from medddpm.training.config import TrainConfig
from medddpm.unet import UNet3D
from study.bench.training_curves import training_curves
from study.figures.architecture import architecture, describe
from study.figures.slices import slice_rows
from study.figures.style import SETTING_COLOURS, new_figure, save_figure
from study.figures.training import loss_curves, loss_differences, step_times
from study.parity.slices import three_slices, where_most

compares_picture = pytest.mark.mpl_image_compare(style="default", tolerance=5, savefig_kwargs={"dpi": 80})


def curves() -> pd.DataFrame:
    """Forty steps of the settings, made up so that each line and bar has a place of its own."""
    step = np.arange(1, 41)
    rows = []
    for place, name in enumerate(["OPT12", "FAST", "BASE", "OPT2", "OPT1"]):  # in no order that a figure may keep
        loss = 0.8 * np.exp(-step / (20 + 5 * place)) + 0.02 * np.sin(step)
        rows.append(
            pd.DataFrame({"setting": name, "step": step, "loss": loss, "step_ms": 100 * (place + 1) + step % 7})
        )
    return pd.concat(rows)


def architecture_table() -> pd.DataFrame:
    return describe(UNet3D(), (128, 128, 128))


@compares_picture
def test_training_looks_as_stored() -> Figure:
    figure = new_figure(height=2.4)
    left, middle, right = figure.subplots(1, 3)
    loss_curves(curves(), left)
    loss_differences(curves(), middle)
    step_times(curves(), right)
    return readable(figure)


@compares_picture
def test_slices_look_as_stored() -> Figure:
    volume = np.zeros((10, 20, 30))
    volume[2:5, 3:9, 20:28] = 1  # right, back and up of nothing: each plane shows where
    rows = {"one": three_slices(volume, where_most(volume > 0)), "two": three_slices(volume)}
    return slice_rows(rows, ["axial", "coronal", "sagittal"], limits=(0, 1), width=4)


@compares_picture
def test_the_architecture_looks_as_stored() -> Figure:
    figure = new_figure(height=4.6)
    architecture(architecture_table(), figure.subplots())
    return readable(figure)


def test_a_curve_a_setting_in_the_books_order_and_colours() -> None:
    axis = loss_curves(curves(), new_figure(2).subplots())
    lines = {line.get_label(): line for line in axis.get_lines()}
    assert list(lines) == list(SETTINGS)
    assert {name: line.get_color() for name, line in lines.items()} == {
        name: SETTING_COLOURS[name] for name in SETTINGS
    }
    expected = curves().query("setting == 'OPT2'")["loss"]
    np.testing.assert_allclose(lines["OPT2"].get_ydata(), expected)


def test_a_difference_is_relative_to_the_references_loss_of_the_same_step() -> None:
    table = curves()
    table.loc[(table["setting"] == "OPT1") & (table["step"] == 7), "loss"] = float(
        table.query("setting == 'BASE' and step == 7")["loss"].iloc[0]
    )
    axis = loss_differences(table, new_figure(2).subplots())
    lines = {line.get_label(): np.asarray(line.get_ydata()) for line in axis.get_lines()}
    assert list(lines) == [name for name in SETTINGS if name != "BASE"]
    base, opt2 = (table.query(f"setting == '{name}'")["loss"].to_numpy() for name in ("BASE", "OPT2"))
    np.testing.assert_allclose(lines["OPT2"], np.abs(opt2 - base) / base)
    assert np.flatnonzero(np.isnan(lines["OPT1"])).tolist() == [6], "equal losses leave a gap"
    assert axis.get_yscale() == "log"


def test_a_bar_is_the_median_of_its_steps() -> None:
    axis = step_times(curves(), new_figure(2).subplots())
    medians = curves().groupby("setting")["step_ms"].median()[list(SETTINGS)]
    assert [bar.get_height() for bar in axis.patches] == medians.tolist()


def test_slices_are_turned_as_they_are_read() -> None:
    """RAS: an axial slice has the front up, the others the top up; the left of the picture is the left of the array."""
    volume = np.zeros((4, 5, 6))
    volume[3, 4, 5] = 1  # right, front, top
    for plane in three_slices(volume, (3, 4, 5)):
        assert plane[0, -1] == 1


def test_every_setting_has_a_colour() -> None:
    assert list(SETTINGS) == [name for name in SETTING_COLOURS if name in SETTINGS]


@pytest.mark.long
def test_files_come_out_the_same_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)  # outside the book's own runs too
    once, twice = (
        [path.read_bytes() for path in save_figure(test_training_looks_as_stored(), "a", tmp_path / name)]
        for name in ("once", "twice")
    )
    assert once == twice
    assert once[0].startswith(b"\x89PNG")
    assert b"<svg" in once[1]


@pytest.mark.parametrize("base", [2.0, 1.7])
@pytest.mark.long
def test_the_last_bits_of_points_on_a_line_change_no_pixel(tmp_path: Path, base: float) -> None:
    """Processors' logarithms differ there, and with them the side on which a join of two pieces is rounded."""
    counts = base ** np.arange(11)
    hours = 24.669926650950003 / counts
    pictures = set()
    for i, moved in enumerate((hours, np.nextafter(hours, np.inf), hours * (1 + 3e-16), hours * (1 - 3e-16))):
        figure = new_figure(height=2.0, width=3.0)
        figure.subplots().loglog(counts, moved)
        pictures.add(save_figure(figure, str(i), tmp_path)[0].read_bytes())
    assert len(pictures) == 1


def test_the_names_of_clips_are_no_hashes(tmp_path: Path) -> None:
    figure = new_figure(height=2.0)
    for axis in figure.subplots(1, 2):
        axis.plot([0, 1], [0, 1])
    _, path = save_figure(figure, "a", tmp_path)
    svg = path.read_text(encoding="utf-8")
    assert re.findall(r'<clipPath id="([^"]*)">', svg) == ["clip1", "clip2"]
    assert set(re.findall(r"url\(#([^)]*)\)", svg)) == {"clip1", "clip2"}


# Figure 3's table


def test_the_table_accounts_for_every_parameter_and_operation(spec: Path) -> None:
    """The specification counts 5.537 TFLOP for the whole head, and about 21 for the four modalities."""
    head = UNet3D()
    table = describe(head, (128, 128, 128))
    embedding = sum(p.numel() for p in head.time_embed.parameters())
    assert table["parameters"].sum() + embedding == 40_226_433
    assert table["gflop"].sum() / 1e3 == pytest.approx(5.537, abs=5e-4)
    brats = describe(UNet3D(192, 8, 4, num_res_blocks=2), (144, 192, 192))
    assert brats["gflop"].sum() / 1e3 == pytest.approx(21, abs=0.5)


def test_the_table_is_read_off_the_network() -> None:
    table = describe(UNet3D(image_size=64, model_channels=32), (32, 32, 16))
    assert table["kind"].value_counts().to_dict() == {
        "residual": 14,
        "attention": 4,
        "down": 3,
        "up": 3,
        "convolution": 1,
        "output": 1,
    }
    assert table[table["kind"] == "attention"]["level"].tolist() == [2, 3, 2, 2]
    first = table.iloc[0]
    # 27 taps × 3 channels in × 32 out, a multiply and an add each
    assert first["gflop"] == pytest.approx(2 * 27 * 3 * 32 * 32 * 32 * 16 / 1e9)
    assert first["parameters"] == 27 * 3 * 32 + 32
    assert (first["depth"], first["height"], first["width"]) == (32, 32, 16)


def test_a_described_network_is_left_as_it_was() -> None:
    network = UNet3D(image_size=64, model_channels=32)
    describe(network, (16, 16, 16))
    assert next(network.parameters()).device.type == "cpu"
    assert not any(module._forward_hooks for module in network.modules())


# The record behind 01_train


def test_every_setting_trains_from_the_same_start(head_folder: Path) -> None:
    config = TrainConfig(image_size=8, model_channels=32, channel_mult=(1, 2), learning_rate=1e-3)
    volumes = VolumeFolder(head_folder, (8, 8, 8))
    table = training_curves(config, volumes, 3, torch.device("cpu"))
    assert table.groupby("setting", sort=False)["step"].apply(list).to_dict() == {name: [1, 2, 3] for name in SETTINGS}
    loss = table.pivot(index="step", columns="setting", values="loss")
    assert (loss.sub(loss["BASE"], axis=0).abs() < 1e-3).all(axis=None)
    assert loss["BASE"].nunique() == 3
    assert (table["step_ms"] > 0).all()


@pytest.mark.parametrize(("without", "with_tf32"), [("BASE", "OPT1"), ("OPT2", "OPT12")])
@pytest.mark.long
def test_tf32_changes_nothing_on_a_cpu(head_folder: Path, without: str, with_tf32: str) -> None:
    """Asked for alone, each is trained; together they are trained once."""
    config = TrainConfig(image_size=8, model_channels=32, channel_mult=(1, 2), learning_rate=1e-3)
    volumes, cpu = VolumeFolder(head_folder, (8, 8, 8)), torch.device("cpu")
    choices = ([without], [with_tf32], [without, with_tf32])
    first, second, both = (training_curves(config, volumes, 2, cpu, names)["loss"].tolist() for names in choices)
    assert first == second
    assert both == first + second
