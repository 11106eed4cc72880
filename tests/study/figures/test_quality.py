"""The parity records: tests that pass and fail, sentences, and pictures against stored ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.parity_records import every_run, slices, tables
from matplotlib.figure import Figure

from medddpm.errors import BadInput
from study.figures import quality as figures_quality
from study.parity import results, sentences
from study.parity import samplers as parity_samplers
from study.parity import tables as parity_tables
from study.parity.plans import FULL, SAMPLERS, brats, contrasts, long, paper, redrawn, samplers, short
from study.parity.results import QualityRecord
from study.parity.samplers import SECONDS
from study.parity.tables import MARGINS, METRIC

compares_picture = pytest.mark.mpl_image_compare(style="default", tolerance=5, savefig_kwargs={"dpi": 80})


@pytest.fixture(scope="module")
def records() -> QualityRecord:
    runs = every_run()
    quality, loss = tables(runs)
    return QualityRecord(quality, loss, {"runs": {run.key: {"steps_wanted": run.steps} for run in runs}}, slices(runs))


def shown(records: QualityRecord) -> pd.DataFrame:
    """Returns the rows of a model of each contrast."""
    quality = records.quality
    return quality[quality["plan"].isin(("contrasts", "long")) & (quality["setting"] == "FAST")]


def parity_of(shift: float, seeds: int = 6) -> pd.DataFrame:
    return parity_tables.parity(tables(short(seeds=range(seeds)), shift)[0]).set_index(METRIC)


# equivalence


def test_settings_that_differ_by_less_than_their_seeds_are_equivalent() -> None:
    table = parity_of(0.0)
    assert set(table.index) == set(MARGINS)
    assert table["equivalent"].all()
    assert (table["seeds"] == 6).all()
    assert table["as_seeds"].mean() > 0.7, "with six seeds the seeds' own range is mostly wide enough"
    assert "equivalent within the stated margin on 11 of 11" in parity_tables.verdict(table.reset_index())


@pytest.mark.parametrize(
    ("shift", "broken", "said"),
    [
        (-60.0, ("psnr", "all"), "PSNR"),
        (60.0, ("wasserstein", "brain"), "Wasserstein of the brain"),
        (60.0, ("held_out_loss", "all"), "held-out loss"),
    ],
)
def test_a_setting_that_is_worse_is_not(shift: float, broken: tuple[str, str], said: str) -> None:
    table = parity_of(shift)
    assert not table.loc[broken, "equivalent"]
    assert not table.loc[broken, "as_seeds"]
    verdict = parity_tables.verdict(table.reset_index())
    assert f"{said} (p = {table.loc[broken, 'p_differs']:.3f}, not equivalent)" in verdict


def test_a_difference_of_every_pair_is_said_whether_or_not_it_is_within_the_margin() -> None:
    table = parity_of(-4.0)
    psnr = table.loc[("psnr", "all")]
    assert psnr["equivalent"]
    assert psnr["differs"], "each pair differs the same way"
    assert psnr["pairs_above"] == 0
    said = parity_tables.verdict(table.reset_index())
    assert (
        f"PSNR (p = {psnr['p_differs']:.3f}, equivalent too)" in said.partition("by a paired t test different on ")[2]
    )
    worse = parity_tables.verdict(parity_of(-60.0).reset_index())
    assert "PSNR (p = 0.000, not equivalent)" in worse
    assert "PSNR" not in worse.partition("not shown for ")[2].partition(")")[0], "a difference is shown"
    alike = parity_of(0.0).reset_index()
    assert "paired t test" not in parity_tables.verdict(alike.assign(differs=False))


def test_what_is_within_the_margin_may_still_be_more_than_another_seed_does() -> None:
    """Three deviations: 0.15 dB of the half that is allowed."""
    table = parity_of(-4.0)
    assert table.loc[("psnr", "all"), "equivalent"]
    assert not table.loc[("psnr", "all"), "as_seeds"]


def test_a_margin_is_set_against_the_spread_of_the_references_seeds() -> None:
    """By hand from the rows of OPT1's four seeds; FAST's own spread has no part in it."""
    rows, _ = tables(short(seeds=range(4)), -60.0)
    table = parity_tables.parity(rows)
    psnrs = rows.query("setting == 'OPT1' and metric == 'psnr'")["value"]
    psnr = table.set_index(METRIC).loc[("psnr", "all")]
    assert psnr["seeds_sd"] == pytest.approx(psnrs.std(ddof=1))
    assert psnr["margin_in_sd"] == pytest.approx(0.5 / psnrs.std(ddof=1))
    assert (table["wide"] == (table["margin"] > table["between_seeds"])).all()
    assert psnr["wide"], "half a decibel, of seeds a twentieth apart"
    shown = sentences.tests(table)
    assert list(shown.index) == list(parity_tables.TITLES.values())
    assert shown.loc["PSNR", "margin / SD"] == f"{psnr['margin_in_sd']:.1f}"
    assert shown.loc["PSNR", ["equivalent", "no worse"]].tolist() == ["no", "no"]
    many = table["wide"].sum()
    assert sentences.wide(table).startswith(f"{many} of 11 margins are wider than any difference between two seeds")
    assert "PSNR" in sentences.wide(table)


def test_seeds_that_differ_by_more_than_a_margin_leave_it_narrow() -> None:
    rows, _ = tables(short(seeds=range(4)))
    of_opt1 = (rows["metric"] == "dice") & (rows["tissue"] == "brain")
    rows.loc[of_opt1, "value"] += 0.1 * rows.loc[of_opt1, "seed"]
    rows.loc[rows["metric"] == "ssim", "value"] = 0.8
    table = parity_tables.parity(rows)
    narrow = table.set_index(METRIC).loc[("dice", "brain")]
    assert not narrow["wide"]
    assert narrow["margin_in_sd"] < 0.2
    assert np.isnan(table.set_index(METRIC).loc[("ssim", "all"), "margin_in_sd"]), "seeds that do not differ"
    assert "Dice of the brain" not in sentences.wide(table)


@pytest.mark.parametrize(
    ("metric", "shift", "no_worse"),
    [
        (("psnr", "all"), 60.0, True),
        (("psnr", "all"), -60.0, False),
        (("wasserstein", "brain"), -60.0, True),
        (("diversity", "all"), 60.0, False),
    ],
)
@pytest.mark.long
def test_what_is_better_is_no_worse_though_not_equivalent(
    metric: tuple[str, str], shift: float, no_worse: bool
) -> None:
    """Diversity is best where it is the held-out volumes' own: more is a loss too."""
    table = parity_of(shift)
    assert not table.loc[metric, "equivalent"]
    assert table.loc[metric, "no_worse"] == no_worse
    assert parity_of(0.0)["no_worse"].all(), "what is equivalent is no worse"


def test_a_relative_margin_goes_by_the_reference() -> None:
    table = parity_of(0.0)
    loss = tables(short())[0].query("metric == 'held_out_loss' and setting == 'OPT1'")["value"].mean()
    assert table.loc[("held_out_loss", "all"), "margin"] == pytest.approx(0.05 * loss)
    assert table.loc[("psnr", "all"), "margin"] == 0.5


def test_runs_that_were_cut_are_not_compared_and_one_seed_is_none() -> None:
    quality, _ = tables(short(seeds=range(3)))
    cut = quality["run"] == short()[3].key
    quality.loc[cut, "step"] = 7
    assert (parity_tables.parity(quality)["seeds"] == 2).all()
    assert parity_tables.parity(quality[quality["seed"] == 0]).empty
    assert parity_tables.verdict(pd.DataFrame()) == "parity: not measured"


@pytest.mark.long
def test_six_seeds_hold_the_interval_of_independent_runs_within_their_range_and_three_do_not() -> None:
    """Justifies the six seeds of `plans.short` by simulation: no pairing, one metric, margin the seeds' range."""
    from medddpm.quality.intervals import equivalence, seed_margin

    def share(seeds: int) -> float:
        rng = np.random.default_rng(seeds)
        pairs = (rng.standard_normal((2, seeds)) for _ in range(300))
        return float(np.mean([equivalence(a, b, seed_margin(a)).equivalent for a, b in pairs]))

    assert share(3) < 0.35
    assert share(6) > 0.8


def test_an_intervals_reach_is_that_of_the_test() -> None:
    quality, _ = tables(short(seeds=range(5)))
    row = parity_tables.parity(quality).set_index(METRIC).loc[("psnr", "all")]
    values = quality[quality["metric"] == "psnr"].pivot_table(index="seed", columns="setting", values="value")
    deviation = (values["FAST"] - values["OPT1"]).std()
    assert row["high"] - row["difference"] == pytest.approx(parity_tables.reach(5) * deviation)


# losses


def test_settings_are_held_against_base_step_by_step() -> None:
    _, loss = tables(paper())
    table = parity_tables.apart(loss)
    assert list(table.index) == ["BASE", "OPT1", "OPT2", "OPT12", "FAST"]
    assert table.loc["BASE", ["training", "held_out"]].tolist() == [0, 0]
    assert table.loc["FAST", "training"] == pytest.approx(4e-3)
    assert table.loc["OPT12", "held_out"] == pytest.approx(5e-3)
    assert (table["steps"] == 30).all()
    assert np.isnan(table.loc["BASE", "between_seeds"])
    assert table.loc["FAST", "between_seeds"] == pytest.approx((2 / 100 + 2 / 100 + 4 / 100) / 3 / 1.02)
    assert "FAST, 30 steps: held-out loss 0.40% from BASE's" in sentences.apart(table)


def test_a_base_that_was_cut_is_compared_as_far_as_it_came() -> None:
    _, loss = tables(paper())
    loss = loss[(loss["setting"] != "BASE") | (loss["step"] <= 17)]
    table = parity_tables.apart(loss)
    assert (table["steps"] == 17).all()
    assert table.loc["FAST", "held_out"] == pytest.approx(4e-3)
    assert parity_tables.apart(loss[loss["setting"] != "BASE"]).empty


def test_half_the_steps_cost_what_the_curve_says() -> None:
    _, loss = tables(short())
    assert parity_tables.half_the_steps(loss) == pytest.approx(2**0.5 - 1)
    assert "41% higher" in sentences.half(loss)


def test_the_reach_of_the_intervals_is_said() -> None:
    table = parity_of(0.0)
    assert sentences.power(table).startswith("with 6 seeds the 90% interval is ±0.82 standard deviations")
    half = (table["high"] - table["low"]) / 2
    quality = tables(short())[0].query("metric == 'psnr'").pivot(index="seed", columns="setting", values="value")
    assert half["psnr", "all"] == pytest.approx(0.8226 * (quality["FAST"] - quality["OPT1"]).std(), rel=1e-3)


def test_a_loss_that_leaps_is_found_and_timesteps_that_leap_are_not() -> None:
    steps = np.arange(20, 4001, 20)
    rng = np.random.default_rng(0)
    calm = 0.1 * rng.lognormal(0, 0.3, len(steps))
    leapt = np.where((steps > 2000) & (steps <= 2080), 4 * calm, calm)
    known = {"plan": "long", "setting": "FAST", "size": "128x128x128", "part": "training", "steps": 20}
    runs = {"calm": calm, "leapt": leapt, "short": calm[:40]}
    rows = [
        {**known, "run": run, "step": step, "loss": loss}
        for run, losses in runs.items()
        for step, loss in zip(steps, losses, strict=False)
    ]
    table = parity_tables.leaps(pd.DataFrame(rows))
    assert list(table.index) == ["calm", "leapt"], "800 steps are ten means, and none after them"
    assert table.loc["leapt", "step"] == 2080
    assert table.loc["leapt", "times"] == pytest.approx(4, rel=0.4)
    assert table.loc["calm", "times"] < 1.5
    assert parity_tables.leaps(QualityRecord().loss).empty


# one model under every setting


def test_settings_that_draw_a_model_otherwise_are_said_to(records: QualityRecord) -> None:
    table = parity_tables.redrawn(records.quality)
    assert list(table.index) == ["OPT1", "OPT2", "OPT12", "FAST"]
    rows = records.of("redrawn").query("metric == 'psnr'").set_index("setting")["value"]
    assert table.loc["FAST", ("psnr", "all")] == pytest.approx((rows["FAST"] - rows["BASE"]) / 0.5)
    fast = redrawn(["FAST"])[0].key
    moved = {name: plane // 2 if f"/{fast}/" in name else plane for name, plane in records.slices.items()}
    one, *_, last = sentences.redrawn(QualityRecord(records.quality, records.loss, records.meta, moved)).splitlines()
    assert one.startswith(
        "OPT1: slices of 2 subjects differ from BASE's by 0.00 of 256 grey levels on average, 0.00 at most; of 11"
    )
    assert last.startswith("FAST: slices of 2 subjects differ from BASE's by ")
    assert not last.startswith("FAST: slices of 2 subjects differ from BASE's by 0.00")
    assert parity_tables.redrawn(records.quality.query("setting != 'BASE'")).empty
    other = records.quality.query("plan != 'redrawn'")
    assert parity_tables.redrawn(other, plan="redrawn_fp32").equals(
        parity_tables.redrawn(records.quality, "BASE", "redrawn_fp32")
    )
    assert parity_tables.redrawn(other).empty, "a plan's rows are its own"
    assert sentences.redrawn(records, plan="redrawn_fp32").startswith("OPT1: slices of 2 subjects ")


# samplers


def test_the_quickest_sampler_within_the_margins_is_advised(records: QualityRecord) -> None:
    table = parity_samplers.samplers(records.quality)
    ddim = ("ddim", 10)
    assert list(table.index[:2]) == [FULL, ddim]
    worse = parity_samplers.shortfall(table)
    assert (worse.loc[FULL] == 0).all()
    assert worse["psnr", "all"][ddim] == pytest.approx(4 * 6 * 0.05 / 0.5)
    assert worse["lesion_contrast", "lesion"][ddim] > 0, "further from the held-out volumes' own"
    good = [row for row in table.index[1:] if (worse.loc[row] <= 1).all()]
    quickest = min(good, key=lambda row: table[SECONDS][row])
    assert parity_samplers.advice(table).startswith(f"{parity_samplers.named(quickest)}: ")
    assert "the masks (one model, untested) no more than a margin worse on any" in parity_samplers.advice(table)


def test_where_no_sampler_is_good_enough_all_steps_are_advised(records: QualityRecord) -> None:
    table = parity_samplers.samplers(records.quality)
    table.loc[table.index != FULL, ("psnr", "all")] -= [6, 5, 4, 3, 2, 1, 5, 3, 0.75]
    said = parity_samplers.advice(table)
    assert said.startswith("DDPM, 250 steps: nothing shorter")
    assert "the nearest is SDE-DPM-Solver++, 50 steps" in said
    assert parity_samplers.advice(table[1:]) == "not measured"
    with pytest.raises(BadInput, match="no DDPM, 250 steps to compare with"):
        parity_samplers.shortfall(table[1:])


# sentences


def test_every_sentence_stands_without_a_record_too() -> None:
    none = QualityRecord()
    said = [sentences.plan(none, "short"), sentences.apart(parity_tables.apart(none.loss))]
    said += [sentences.half(none.loss), sentences.slices(none), sentences.brats(none.of("brats"))]
    said += [sentences.redrawn(none), sentences.redrawn(none, plan="redrawn_fp32"), sentences.wide(pd.DataFrame())]
    assert sentences.tests(pd.DataFrame()).empty
    said += [sentences.power(pd.DataFrame()), parity_samplers.advice(parity_samplers.samplers(none.quality))]
    assert all(line.endswith("not measured") for line in said), said
    assert sentences.summary(none.of("contrasts")).empty
    assert sentences.margins(parity_samplers.samplers(none.quality)).empty
    assert parity_tables.recorded(Path("nowhere"), "H200").quality.empty


def test_sentences_have_the_records_numbers(records: QualityRecord) -> None:
    said = sentences.plan(records, "short")
    assert said == "short: 8 runs, OPT1, FAST, 4 seeds, FLAIR, 64x64x64, 32 channels, 40 of 4,000 steps"
    assert "a trained model evaluated" in sentences.plan(records, "samplers")
    lines = sentences.brats(records.of("brats")).splitlines()
    assert lines[2] == "Dice with the mirrored mask: brain 0.600, tumour 0.600"
    table = sentences.summary(shown(records))
    assert list(table.columns) == ["T1, step 40", "T2, step 40", "FLAIR, step 100"]
    assert table.loc["Dice, brain, of held-out"].tolist() == ["0.99 [0.99, 0.99]"] * 3
    margins = sentences.margins(parity_samplers.samplers(records.quality))
    assert margins.loc["DDPM, 250 steps", ["s per volume", "metrics beyond the margin"]].tolist() == [4, 0]
    worse = parity_samplers.shortfall(parity_samplers.samplers(records.quality)).loc[("ddim", 10)]
    assert margins.loc["DDIM, 10 steps", "margins worse"] == round(worse.max(), 2)
    assert margins.loc["DDIM, 10 steps", "worst metric"] == parity_tables.TITLES[worse.idxmax()]


def test_slices_are_compared_between_settings_and_between_seeds(records: QualityRecord) -> None:
    moved = dict(records.slices)
    for name in [name for name in moved if name.startswith("sample/short_") and "_s0_" not in name]:
        moved[name] = (moved[name] // 2 + 20).astype(np.uint8)
    said = sentences.slices(QualityRecord(records.quality, records.loss, records.meta, moved))
    assert "two settings trained from one seed differ by 0.0 of 256" in said
    assert "by 0.0" not in said.split("slices of two seeds")[1]


# pictures


@compares_picture
def test_parity_samples_look_as_stored(records: QualityRecord) -> Figure:
    figure = figures_quality.parity_slices(records.slices, records.of("short"), ["OPT1", "FAST"], [0, 1])
    titles = [axis.get_title() for axis in figure.axes[:5]]
    assert titles == ["held out", "OPT1\nseed 0", "FAST\nseed 0", "OPT1\nseed 1", "FAST\nseed 1"]
    return figure


@compares_picture
def test_samples_along_the_way_look_as_stored(records: QualityRecord) -> Figure:
    figure = figures_quality.along_the_way(records.slices, long()[0].key)
    assert [axis.get_title() for axis in figure.axes[:8]] == [
        f"{step} steps" for step in (10, 20, 40, 50, 60, 70, 90, 100)
    ]
    return figure


@compares_picture
def test_the_brats_case_looks_as_stored(records: QualityRecord) -> Figure:
    figure = figures_quality.brats_slices(records.slices, records.of("brats"))
    assert len(figure.axes) == 12
    return figure


@compares_picture
def test_long_losses_look_as_stored(records: QualityRecord) -> Figure:
    loss = records.loss[records.loss["plan"] == "long"]
    cut = loss[(loss["setting"] == "FAST") | (loss["step"] <= 40)]
    figure = figures_quality.long_figure(cut, {"FAST": 39.0, "OPT1": 228.0})
    left, right = figure.axes
    for axis, ends in ((left, (40, 100)), (right, (40 * 228 / 60e3, 100 * 39 / 60e3))):
        assert [line.get_xdata()[-1] for line in axis.lines] == pytest.approx(ends)
    return figure


@compares_picture
def test_samplers_look_as_stored(records: QualityRecord) -> Figure:
    figure = figures_quality.samplers_figure(parity_samplers.samplers(records.quality))
    assert [axis.get_title() for axis in figure.axes][:2] == ["PSNR, dB ↑", "Wasserstein, brain ↓"]
    assert sorted({text.get_text() for axis in figure.axes for text in axis.texts}) == ["10", "25", "250", "50"]
    return figure


@compares_picture
def test_samples_of_samplers_look_as_stored(records: QualityRecord) -> Figure:
    figure = figures_quality.samplers_slices(records.slices, records.of("samplers"), [FULL, SAMPLERS[-1], SAMPLERS[3]])
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["held out", "DDPM\n250 steps", "SDE-DPM-Solver++\n50 steps", "DDIM\n50 steps"]
    assert all(len(axis.collections) == 1 for axis in figure.axes), "the lesion is outlined in every picture"
    return figure


def test_every_plans_made_up_run_fits_the_schemas(tmp_path: Path) -> None:
    """These tests rest on what the store writes."""
    from helpers.parity_records import write

    runs = [short()[0], paper()[0], long()[0], contrasts()[0], brats()[0], samplers()[0], redrawn()[0]]
    records = results.read(write(tmp_path, runs))
    assert records is not None
    assert records.quality["run"].nunique() == len({run.key for run in runs})
