"""The columns of the tables that judge synthetic brains."""

from __future__ import annotations

from medddpm.measure.schemas import ORIGIN, Column, Schema

_NUMBER = {
    "metric": Column("str", "as `medddpm.quality.measures.MEASURES` has it, or spectrum or nearest"),
    "channel": Column("str", "of the image; all where it is not one's"),
    "tissue": Column("str", "tissue, pair of tissues, shell of frequency or size of tumour; all where it is none's"),
}
_INTERVAL = {
    "value": Column("float64", "of the set"),
    "low": Column("float64", "lower end of its 95% interval over volumes", nullable=True),
    "high": Column("float64", "upper end", nullable=True),
}
VERDICTS = Schema(
    {
        "samples": Column("str", "the set of samples, as its file is called; heads: held-out heads, judged likewise"),
        "seed": Column("int64", "of the head whose mask the sample was drawn for"),
        "subject": Column("int64", "of that head"),
        **_NUMBER,
        "value": Column("float64", "in the metric's unit; none where the sample lacks the tissue", nullable=True),
        "low": Column("float64", "5th percentile of held-out heads; none where less is no fault", nullable=True),
        "high": Column("float64", "95th percentile; none where more is no fault", nullable=True),
        "excess": Column("float64", "distance from the heads' median in halves of the range; 1 at its end"),
        "within": Column("int64", "1 within the range, 0 outside"),
        "note": Column("str", "the nearest training subject", nullable=True),
    }
)
WHOLES = Schema(
    {
        "samples": Column("str", "the set of samples, as its file is called; heads: held-out heads, judged likewise"),
        "seed": Column("int64", "of the head whose mask the sample was drawn for"),
        "subject": Column("int64", "of that head"),
        "group": Column("str", "what is judged as a whole", allowed=("anatomy", "image", "lesion", "copy", "cortex")),
        "numbers": Column("int64", "of the group"),
        "outside": Column("int64", "of them outside their range; of held-out heads one in ten is"),
        "worst": Column("str", "the number farthest from the heads' median"),
        "excess": Column("float64", "its distance, in halves of its range"),
        "limit": Column("float64", "the same of held-out heads, 95th percentile"),
        "passes": Column("int64", "1 if the excess is within the limit, else 0"),
    }
)
SETS = Schema(
    {
        "samples": Column("str", "the set of samples, as its file is called; heads for …: as many held-out heads"),
        "metric": Column(
            "str",
            "of `medddpm.quality.metrics.METRICS`; frechet_segmenter and mmd_segmenter: of the features of the "
            "segmenter's encoder",
        ),
        "channel": Column("str", "of the image; all where it is not one's"),
        **_INTERVAL,
        "n": Column("int64", "volumes of the measured set"),
    }
)
USE = Schema(
    {
        "samples": Column("str", "the set of samples, as its file is called"),
        "trained_on": Column("str", "what the segmenter was trained on", allowed=("heads", "samples", "both")),
        "seed": Column("int64", "of the segmenter's weights and order"),
        "volumes": Column("int64", "trained on"),
        "tissue": Column("str", "as `medddpm.quality.tissues.TISSUES` has it"),
        "value": Column("float64", "mean Dice on held-out heads"),
        "low": Column("float64", "lower end of its 95% interval over heads", nullable=True),
        "high": Column("float64", "upper end", nullable=True),
        "ratio": Column("float64", "value over that of heads alone, of that seed", nullable=True),
    }
)
TRAININGS = Schema(
    {
        "arm": Column("str", "as `study.brains.arms.ARMS` has it"),
        "seed": Column("int64", "of weights, order, timesteps and noise"),
        "contrast": Column("str", "of the heads; all: the three as channels", allowed=("t1", "t2", "flair", "all")),
        "side": Column("int64", "of a volume", unit="voxel"),
        "channels": Column("int64", "base width of the network"),
        "volumes": Column("int64", "in a step"),
        "heads": Column("int64", "trained on, the first of seed 0"),
        "setting": Column("str", "trained and sampled under, as `study.brains.settings.CHOICES` has it"),
        "wanted_s": Column("float64", "that the training was given; none where its steps were", "s", nullable=True),
        "steps": Column("int64", "of the training"),
        "seconds": Column("float64", "that these took, after the first, in which the step is captured", unit="s"),
        "metric": Column(
            "str",
            "clean_error: mean squared error of x_0, clamped to [-1, 1], over held-out heads, at a noise-to-signal "
            "ratio; loss: the arm's own, mean over a twentieth of the steps; sample_s: seconds a volume takes; "
            "sample_gib: device memory that drawing eight at once takes",
            allowed=("clean_error", "loss", "sample_s", "sample_gib"),
        ),
        "weights": Column("str", "that were measured", nullable=True, allowed=("averaged", "raw")),
        "share": Column("float64", "of the steps, at whose end it was measured"),
        "ratio": Column("float64", "σ/α of the noised heads; the nearest timestep's", nullable=True),
        "sampler": Column("str", "that drew the samples", nullable=True),
        "evaluations": Column("float64", "of the network for a sample", nullable=True),
        "value": Column("float64", "in the metric's unit"),
        "n": Column("int64", "heads, steps or samples that it is the mean of"),
        **ORIGIN,
    }
)
