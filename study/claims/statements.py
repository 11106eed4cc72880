"""Sentences of the paper beside its numbers and takeaways (S1 to S9), judged by the H100's records.

Profiles judge S1 to S5 in both views; the record of Figure 2's networks judges S6 and S7, that of quality S8 and S9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from medddpm.measure.profile import summaries
from medddpm.measure.profile.instructions import CLASSES
from study.claims.conclusions import Conclusion, Judged, Part, by_profiles, row, table
from study.claims.kernels import ALL, KN1, KN3, KN4, KernelsOfRun, Launches, Runs, time_share
from study.claims.takeaways import EVEN, in_words, shares_of

CARD = "H100"
PRIOR = "wuerstchen-prior"  # the network of Würstchen whose training's hours are published
THIN = 10.0  # percent of the time: our choice for "thin slices"
SLICES = {
    "pointwise operations": Launches("pointwise", ("pointwise",)),
    "padding and layout transforms": Launches("layout", ("layout",)),
    "norms and reductions": Launches("norms and reductions", ("normalization", "reduction")),
}
LAYOUTS = ("OPT2", "OPT12")


def settle(runs: Runs, networks: pd.DataFrame, compared: pd.DataFrame, redrawn: pd.DataFrame) -> pd.DataFrame:
    """Judges the sentences (schema `CONCLUSIONS`), those by profiles in a row for each view.

    Args:
        runs: of `study.claims.findings.every_run`.
        networks: of `figure_2`, the H100's.
        compared, redrawn: of `quality`, the H100's.
    """
    rows = [*by_profiles(BY_PROFILES, runs, "window"), *by_profiles(BY_PROFILES, runs, "step")]
    cluster, wuerstchen = figure_2(networks)
    degrading, accuracy = quality(compared, redrawn)
    parts = {"S6": cluster, "S7": wuerstchen, "S8": degrading, "S9": accuracy}
    by = {
        "figure 2": f"on the {CARD} by a training step of each of 04's networks",
        "quality": f"on the {CARD} by 17's plans fp32 and redrawn_fp32",
    }
    for name, (stated, rule, view, narrower) in OTHERS.items():
        rows.append(row(name, stated, rule, Judged(parts[name], by[view], CARD, view), view, "", narrower))
    return table(sorted(rows, key=lambda cells: str(cells[0])))


def s1(run: KernelsOfRun) -> list[Part]:
    """Judges the L1 hit rate under channels-last, held against BASE's."""
    rates = {setting: run.value(setting, "l1_hit_pct") for setting in (summaries.BASE, "OPT1", *LAYOUTS)}
    said = [f"{setting} {rate:.1f}%" for setting, rate in rates.items()]
    numbers = {LAYOUTS[0]: ", ".join(said[:-1]), LAYOUTS[1]: said[-1]}
    base = rates[summaries.BASE]
    return [Part(f"below BASE under {name}", numbers[name], rates[name] < base) for name in LAYOUTS]


def s2(run: KernelsOfRun) -> list[Part]:
    """Judges whether control, predicate and movement have larger shares under channels-last than under BASE."""
    mixes = {setting: shares_of(run, ALL, setting) for setting in (summaries.BASE, *LAYOUTS)}
    parts = []
    for column in ("inst_control", "inst_pred", "inst_move"):
        base, *others = (mix[column] for mix in mixes.values())
        name, said = CLASSES[column].lower(), ", ".join(f"{mix[column]:.3g}%" for mix in mixes.values())
        parts.append(Part(name, f"{name} {said}", min(others) > base))
    return parts


def s3(run: KernelsOfRun) -> list[Part]:
    """Judges what row-wise moments rely on; also gives their floating-point instructions."""
    *others, last = _heavy(run, KN3, "inst_ldst", "inst_int", "inst_control")
    return [*others, replace(last, numbers=f"{last.numbers}; {in_words(shares_of(run, KN3), 'inst_fp')}")]


def s4(run: KernelsOfRun) -> list[Part]:
    """Judges how few floating-point instructions elementwise kernels have, and what they rely on."""
    few, many = (shares_of(run, launches)["inst_fp"] for launches in (KN4, KN1))
    numbers = f"floating point {few:.3g}% (the convolution {many:.3g}%)"
    first = Part("few floating-point instructions", numbers, few < many / 2)
    return [first, *_heavy(run, KN4, "inst_int", "inst_uniform", "inst_move", "inst_control")]


def _heavy(run: KernelsOfRun, launches: Launches, *classes: str) -> list[Part]:
    """Judges of some launches which classes have an even share of the instructions or more."""
    shares = shares_of(run, launches)
    return [Part(CLASSES[name].lower(), in_words(shares, name), shares[name] >= EVEN) for name in classes]


def s5(run: KernelsOfRun) -> list[Part]:
    """Judges whether the slices beside the convolutions are thin."""
    shares = {name: time_share(run.of(summaries.BASE), launches) for name, launches in SLICES.items()}
    return [Part(name, f"{name} {share:.3g}%", share < THIN) for name, share in shares.items()]


def figure_2(networks: pd.DataFrame) -> tuple[list[Part], list[Part]]:
    """Judges Section 2.1's two sentences about Figure 2 by a card's steps, which must agree in FP32 and BF16.

    Args:
        networks: schema `GENERATIVE`.

    Returns:
        the parts of "diffusion architectures cluster …" and of "models like Wurstchen …".
    """
    ipc = networks.pivot(index="model", columns="precision", values="ipc_geometric")[["fp32", "bf16"]]
    models = networks.drop_duplicates("model").set_index("model").loc[ipc.index]
    gan, hours = models["kind"] == "GAN", models["training_gpu_hours"].astype("float64")
    theirs, low, high = ipc[~gan], ipc[~gan].min(), ipc[~gan].max()
    between = (ipc[gan] >= low) & (ipc[gan] <= high)
    spans = " and ".join(f"{low[name]:.2f} to {high[name]:.2f}" for name in ipc.columns)
    costs, gans = hours[~gan].dropna(), hours[gan].max()
    cluster = [
        Part(
            "a range of IPC of their own",
            f"IPC of {len(theirs)} diffusion models {spans} (FP32, BF16), of the GAN {_each(ipc[gan].max())}",
            not between.to_numpy().any(),
        ),
        Part(
            "longer training than the GAN's",
            f"{costs.min():,.0f} to {costs.max():,.0f} published A100 hours of {len(costs)} diffusion models, "
            f"{gans:,.0f} V100 hours of the GAN",
            bool(costs.min() > gans),
        ),
    ]
    rest = models.index[~gan & ~models.index.str.startswith("wuerstchen")]
    ours, median = ipc.T[PRIOR], ipc.loc[rest].median()
    cost, others = hours.to_dict()[PRIOR], hours[rest].median()
    kind = str(models["kind"].to_dict()[PRIOR])
    wuerstchen = [
        Part(
            "a higher IPC than the other diffusion models' median",
            f"IPC of Würstchen's prior {_each(ours)} (FP32, BF16), the others' median {_each(median)}",
            bool((ours > median).all()),
        ),
        Part(
            "shorter training than the other diffusion models' median",
            f"{cost:,.0f} published A100 hours, the others' median {others:,.0f}",
            bool(cost < others),
        ),
        Part("no iterative denoising", f"Würstchen's prior is a {kind} model", "diffusion" not in kind),
    ]
    return cluster, wuerstchen


def _each(numbers: pd.Series[float]) -> str:
    return " and ".join(f"{number:.2f}" for number in numbers)


def quality(compared: pd.DataFrame, redrawn: pd.DataFrame) -> tuple[list[Part], list[Part]]:
    """Judges the abstract's and Section 5.1's sentences about quality by 17's tests.

    Args:
        compared: of `study.parity.tables.parity` with BASE as the reference.
        redrawn: of `study.parity.tables.redrawn`: differences from BASE in margins, of one model's samples.

    Returns:
        the parts of "without degrading synthesis quality" and of "convergence accuracy nearly equivalent to FP32".
    """
    tf32 = compared[compared["setting"] == "OPT1"]
    no_worse, equivalent = int(tf32["no_worse"].sum()), int(tf32["equivalent"].sum())
    most = float(redrawn.loc[list(LAYOUTS)].abs().to_numpy().max())
    degrading = [
        Part(
            "models trained under TF32 are no worse",
            f"TF32 (OPT1) against FP32, {int(tf32['seeds'].min())} seeds: no more than a margin worse on {no_worse} of "
            f"{len(tf32)} metrics, equivalent on {equivalent}",
            no_worse == len(tf32),
        ),
        Part(
            "one model draws the same under channels-last",
            f"one model's samples under OPT2 and OPT12 differ from BASE's by {most:.2g} of a margin at most",
            most < 1,
        ),
    ]
    loss = tf32[tf32["metric"] == "held_out_loss"]
    apart, margin = (float((100 * loss[name] / loss["reference"]).iloc[0]) for name in ("difference", "margin"))
    numbers = f"held-out loss {apart:+.2f}% (margin {margin:.0f}%)"
    return degrading, [Part("the held-out loss is equivalent", numbers, bool(loss["equivalent"].all()))]


OF_EVEN = f"{EVEN:.3g}% or more of the instructions, an even share of the {len(CLASSES)} classes (our choice)"
BY_PROFILES: Sequence[Conclusion] = (
    Conclusion(
        "S1",
        "under OPT2 and OPT12 “the L1 hit rate either recovers only partially from OPT1 or drops below baseline” on "
        "the H100 (Section 6.3)",
        "under OPT2 and under OPT12 it is below BASE's",
        s1,
        settings=(summaries.BASE, "OPT1", *LAYOUTS),
    ),
    Conclusion(
        "S2",
        "under OPT2 and OPT12 “elevated shares of control, predicate, and movement instructions” (Section 6.1)",
        "of all launches' instructions each class has a larger share under OPT2 and OPT12 than under BASE (numbers: "
        "BASE, OPT2, OPT12)",
        s2,
        settings=(summaries.BASE, *LAYOUTS),
    ),
    Conclusion(
        "S3",
        "normalization kernels, “such as RowwiseMomentsCUDAKernel … rely heavily on load/store instructions, integer "
        "arithmetic, and control logic” (Section 4.3)",
        f"under BASE each has {OF_EVEN}, in the named kernel (KN3)",
        s3,
    ),
    Conclusion(
        "S4",
        "“Elementwise operations contain relatively few floating-point instructions and instead rely heavily on "
        "integer arithmetic, uniform datapath operations, register movement, and control flow” (Section 4.3)",
        "under BASE the elementwise kernels (KN4) have less than half of the floating-point share of the named "
        f"convolution (KN1; our choice), and of the other classes each has {OF_EVEN}",
        s4,
    ),
    Conclusion(
        "S5",
        "“pointwise operations, padding and layout transforms, and small reductions appear only as thin slices” "
        "(Section 4.2)",
        f"under BASE each takes less than {THIN:g}% of the time (our choice); norms count as reductions",
        s5,
    ),
)
SMALL = (
    "Models of 32³ voxels on synthetic subjects were compared (17_quality); the published size, patients' volumes and "
    "trainings under channels-last were not."
)
OTHERS = {  # stated, rule, record, how our scope is narrower
    "S6": (
        "“diffusion architectures cluster in a medium-IPC, long-duration regime” (Section 2.1, Figure 2)",
        "no other model's IPC lies among theirs, and each took longer to train",
        "figure 2",
        "",
    ),
    "S7": (
        "“models like Wurstchen achieve higher IPC and much shorter training times because they avoid iterative "
        "denoising” (Section 2.1)",
        "its IPC is higher and its training shorter than the other diffusion models' median (our choice), and it is "
        "none itself",
        "figure 2",
        "",
    ),
    "S8": (
        "“all without degrading synthesis quality” (abstract)",
        "no metric is worse by more than a stated margin",
        "quality",
        SMALL,
    ),
    "S9": (
        "“maintaining convergence accuracy nearly equivalent to FP32” (Section 5.1, TF32)",
        "the held-out loss is equivalent within its stated margin",
        "quality",
        SMALL,
    ),
}
