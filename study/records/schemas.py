"""The columns of every table the book keeps, with their units and meanings."""

from __future__ import annotations

from dataclasses import replace

from medddpm.measure.schemas import ERRORS, ORIGIN, POWER, TIMES, Column, Schema

PAPER = Schema(
    {
        "id": Column("str", "number of the claim: the paper's are P001 to P204, the CUDA report's begin with C"),
        "section": Column("str", "section of the paper that states it"),
        "figure": Column("str", "figure or table it belongs to", nullable=True),
        "gpu": Column("str", "card or cards it speaks of, separated by semicolons"),
        "config": Column("str", "setting or settings, separated by semicolons", nullable=True),
        "subject": Column("str", "kernel, kernel group or workload"),
        "metric": Column("str", "what is counted"),
        "value": Column("str", "the number or name as stated; a range reads low-high"),
        "unit": Column("str", "unit of the value", nullable=True),
        "qualifier": Column("str", "how firmly the paper states it: = where exact"),
    }
)
CLAIMS = Schema(
    {
        "id": Column("str", "number of the claim, as in the paper's table"),
        "paper_value": Column("str", "as the paper states it"),
        "our_value": Column("str", "as found here", nullable=True),
        "view": Column("str", "where ours comes from: window, step, configuration, software, card or source"),
        "card": Column("str", "card whose records decide", nullable=True),
        "other_card": Column("str", "another card that was measured and decides nothing", nullable=True),
        "other_value": Column("str", "as found on that one", nullable=True),
        "tolerance": Column(
            "float64", "largest relative difference that still reproduces; 0 is equality", nullable=True
        ),
        "status": Column(
            "str",
            "the verdict; checked_against_source: document or driver agree; same_setting_or_name: ours by our own "
            "choice, not by measurement; proxy: measured on another card only",
            allowed=(
                "reproduced",
                "differs",
                "checked_against_source",
                "same_setting_or_name",
                "proxy",
                "not_measurable",
            ),
        ),
        "reason": Column("str", "why, in a sentence"),
    }
)
CONCLUSIONS = Schema(
    {
        **CLAIMS.columns,
        "paper_value": Column("str", "the paper's sentence, in short, and where it stands"),
        "status": Column(
            "str",
            "the verdict; in_part: some of what the sentence says holds, or all of it in a narrower scope",
            allowed=("reproduced", "in_part", "differs", "not_measurable"),
        ),
    }
)
TRAINING = Schema(
    {
        "setting": Column("str", "the setting it was trained under: BASE, OPT1, OPT2, OPT12 or FAST"),
        "step": Column("int64", "optimizer steps done, from 1"),
        "loss": Column("float64", "mean absolute error of the predicted noise over the step's batch"),
        "step_ms": Column("float64", "wall time of the step", unit="ms"),
    }
)
# The same of tables that were written before their rows said it.
_MACHINE = {name: replace(column, later=True) for name, column in ORIGIN.items() if name != "date"}
GENERATIVE = Schema(
    {
        "model": Column("str", "as `study.generative.models` names it"),
        "title": Column("str", "as the figure names it"),
        "kind": Column("str", "what is trained", allowed=("latent diffusion", "diffusion", "GAN")),
        "precision": Column("str", "of the step: fp32 (TF32 off) or bf16 (autocast)", allowed=("fp32", "bf16")),
        "parameters": Column("int64", "weights of the network that is trained"),
        "resolution": Column("str", "of the image or volume"),
        "ipc_geometric": Column("float64", "geometric mean of the launches' IPC, weighted by time", "inst/cycle"),
        "ipc_total": Column(
            "float64", "all instructions of the step divided by all its active SM cycles", "inst/cycle"
        ),
        "step_ms": Column("float64", "time of all launches of a training step, batch 1", "ms"),
        "launches": Column("int64", "launches, fills and copies of the step"),
        "matched": Column("float64", "share of the time whose launches have counters"),
        "training_gpu_hours": Column("float64", "published cost of its training, hours times GPUs", "h", nullable=True),
        "training_hardware": Column("str", "the GPU that cost is counted on", nullable=True),
        "source": Column("str", "who states the cost, or why there is none"),
        "configuration": Column("str", "where the network's configuration is published"),
        **ORIGIN,
    }
)
BENCH = Schema(
    {
        "network": Column("str", "the network, as `study.bench.networks` names it"),
        "setting": Column("str", "how it runs, as `study.bench.settings` names it"),
        "measure": Column(
            "str",
            "a training step (forward, loss, backward, Adam), a forward pass without gradients, or a whole volume",
            allowed=("step", "forward", "sample"),
        ),
        "sampler": Column("str", "sampler of a whole volume: ddpm, ddim or dpm++", nullable=True),
        "steps": Column("int64", "network evaluations of a whole volume; otherwise 1"),
        "batch": Column("int64", "volumes at once"),
        "size": Column("str", "D×H×W of a volume, as 128x128x128"),
        **TIMES,
        "tflops": Column(
            "float64", "FLOPs of the network as it is written, divided by the median", unit="TFLOP/s", nullable=True
        ),
        **ERRORS,
        **POWER,
        **ORIGIN,
        "date": replace(
            ORIGIN["date"],
            meaning="when it was measured; the H200's rows of 2026-11-21T19:06:01 have the date of their table, and "
            "were measured between 18:57 and 19:22",
        ),
    }
)
COVERAGE = Schema(
    {
        "network": Column("str", "the network, as `python -m study bench --network` names it"),
        "side": Column("int64", "of a volume, all three sides", unit="voxel"),
        "batch": Column("int64", "volumes at once"),
        "kind": Column(
            "str",
            "own: a kernel of this package; product: a convolution over channels-last memory or a matrix product; "
            "left: everything else that the step launches",
            allowed=("own", "product", "left"),
        ),
        "family": Column("str", "the kernels' family, as medddpm.measure.profile.families has it"),
        "ms": Column("float64", "their time in one eager training step, without the optimizer", unit="ms"),
        "launches": Column("int64", "how many there were"),
    }
)
THROUGHPUT = Schema(
    {
        "group": Column("str", "what is varied, as `study.throughput.levers` names it"),
        "choice": Column(
            "str", "to what; everything else is as in the reference: FAST, one volume a step, in one graph"
        ),
        "size": Column("str", "H×W×D of a volume, as 128x128x128"),
        "batch": Column("int64", "volumes in a step"),
        "volumes_a_second": Column("float64", "trained on, the loading included", unit="1/s"),
        "of_reference": Column(
            "float64",
            "volumes a second divided by those of its reference in the same run: FAST, for BraTS none computed again",
            nullable=True,
        ),
        "predicted": Column("float64", "volumes a second expected from the reference's row", "1/s", nullable=True),
        "ratio": Column("float64", "measured divided by predicted", nullable=True),
        "step_ms": Column("float64", "time of a step, on average", unit="ms"),
        "steps": Column("int64", "how many were timed"),
        "device_pct": Column(
            "float64", "share of the time in which a kernel runs (CUPTI); on a CPU in which it computes", "%"
        ),
        "copy_pct": Column("float64", "share in which only a batch is copied", "%"),
        "loader_pct": Column("float64", "share in which the device idles while the host waits for a batch", "%"),
        "host_pct": Column("float64", "share in which it idles for another reason", "%"),
        "sm_active_pct": Column("float64", "share of SMs that are active, on average (NVML's GPM)", "%", nullable=True),
        "peak_gib": Column("float64", "the most that tensors held at once", "GiB", nullable=True),
        "reserved_gib": Column("float64", "the most that PyTorch held of the card", "GiB", nullable=True),
        "prepare_ms": Column("float64", "time in which one process has a volume ready", unit="ms"),
        "costs": Column("str", "what it takes beside time", nullable=True),
        "date": Column("str", "when it was measured"),
        **_MACHINE,
    }
)
ENDURANCE = Schema(
    {
        "size": Column("str", "H×W×D of a volume, as 128x128x128"),
        "source": Column("str", "where the volumes come from; prepared once", allowed=("phantom", "nii.gz")),
        "step": Column("int64", "the last step logged by then"),
        "seconds": Column("float64", "since the training's process was started", unit="s"),
        "busy_pct": Column("float64", "share of the time since the last row in which a kernel ran (NVML)", "%", True),
        "host_mib": Column(
            "float64", "memory of the training and its loading processes; what they share is counted once", unit="MiB"
        ),
        "card_mib": Column("float64", "memory taken on the card, by the watching process too", "MiB", nullable=True),
        "date": Column("str", "when it was seen"),
        **_MACHINE,
    }
)
CEILINGS = Schema(
    {
        "ceiling": Column(
            "str",
            "a copy, bytes read and written counted; or a product of random square matrices",
            allowed=("copy", "fp32", "tf32", "bf16"),
        ),
        "value": Column("float64", "the rate at the median"),
        "unit": Column("str", "of the value", allowed=("GB/s", "TFLOP/s")),
        "median_ms": Column("float64", "time", unit="ms"),
        "p10_ms": Column("float64", "tenth percentile of the samples", unit="ms"),
        "p90_ms": Column("float64", "ninetieth percentile of the samples", unit="ms"),
        "samples": Column("int64", "how often it was timed"),
        "size": Column("int64", "bytes that are copied, or rows of a matrix"),
    }
)

SCALING = Schema(
    {
        "network": Column(
            "str", "med-ddpm, or its four-modality form for BraTS", allowed=("med-ddpm", "med-ddpm-brats")
        ),
        "size": Column("str", "D×H×W of a volume, as 128x128x128"),
        "channels": Column("int64", "base width of the network"),
        "setting": Column("str", "BASE, OPT1, OPT2, OPT12 or FAST"),
        "weights": Column(
            "str",
            "replicated: on every GPU, their gradients summed; sharded: each GPU keeps a part of weights and moments",
            allowed=("replicated", "sharded"),
        ),
        "gpus": Column("int64", "processes, each with a GPU"),
        "measure": Column(
            "str",
            "a training step; the sum of its gradients over all GPUs by itself; or volumes drawn at once, one on each "
            "GPU, in 25 steps of ddim",
            allowed=("step", "all-reduce", "sample"),
        ),
        "micro_steps": Column("int64", "volumes of a step on each GPU, one after the other; otherwise 1"),
        "gradient_dtype": Column("str", "in which gradients are sent; where none are, none", nullable=True),
        "bucket_mib": Column(
            "float64",
            "gradients of a step that are summed at a time while the backward pass goes on; 0: all at once after it",
            "MiB",
            nullable=True,
        ),
        "median_ms": Column("float64", "time, of the slowest process", unit="ms"),
        "p10_ms": Column("float64", "tenth percentile of the samples", unit="ms"),
        "p90_ms": Column("float64", "ninetieth percentile of the samples", unit="ms"),
        "samples": Column("int64", "how often it was timed"),
        "alone_ms": Column(
            "float64",
            "median of the same step on all GPUs at once without communication, of the slowest process",
            unit="ms",
            nullable=True,
        ),
        "sent_mib": Column("float64", "gradients that a GPU sums with the others in a step", "MiB", nullable=True),
        "peak_gib": Column("float64", "most that tensors held at once on a GPU", unit="GiB", nullable=True),
        "date": Column("str", "when it was measured"),
        **_MACHINE,
    }
)
QUALITY = Schema(
    {
        "plan": Column("str", "why it was trained, as `study.parity.run.plans` names it"),
        "run": Column("str", "the run's key"),
        "setting": Column("str", "it was trained and sampled under: BASE, OPT1, OPT2, OPT12 or FAST"),
        "contrast": Column("str", "of the phantom: t1, t2 or flair; or brats, the four-modality model"),
        "size": Column("str", "H×W×D of a volume, as 64x64x64"),
        "width": Column("int64", "base channels of the network"),
        "seed": Column("int64", "of weights, order, timesteps and noise of the training"),
        "step": Column("int64", "optimizer steps trained; 0 where a given model was evaluated"),
        "sampler": Column("str", "ddpm, ddim, dpm++ or sde-dpm++; none where nothing was sampled", nullable=True),
        "sampler_steps": Column("int64", "network evaluations of a sample; 0 where nothing was sampled"),
        "metric": Column(
            "str",
            "of `quality.metrics.METRICS`; held_out_loss, of fixed timesteps and noise; seconds_a_volume (s, tenth and "
            "ninetieth percentile); ms_a_step (ms, data and all); brightness_kept, of `evaluate`; NAME_mirrored: "
            "for the mask turned over",
        ),
        "channel": Column("str", "of the image; all where it is not one's"),
        "tissue": Column("str", "of the mask; all where it is not one's"),
        "value": Column("float64", "in the metric's unit"),
        "low": Column("float64", "lower end of its 95% interval over subjects", nullable=True),
        "high": Column("float64", "upper end", nullable=True),
        "n": Column("int64", "volumes (of seconds_a_volume batches, of ms_a_step steps)"),
    }
)
LOSS = Schema(
    {
        **{name: QUALITY.columns[name] for name in ("plan", "run", "setting", "contrast", "size", "width", "seed")},
        "part": Column(
            "str",
            "training: mean of a window's steps; held-out: subjects never trained on, at fixed timesteps and noise",
            allowed=("training", "held-out"),
        ),
        "step": Column("int64", "optimizer steps done; of a window its last"),
        "steps": Column("int64", "of the window; 1 of a held-out loss"),
        "loss": Column("float64", "mean absolute error of the predicted noise"),
    }
)
GPU_TESTS = Schema(
    {
        "file": Column("str", "the test file, from tests/"),
        "outcome": Column("str", "how its tests ended", allowed=("passed", "failed", "skipped")),
        "reason": Column("str", "why they were skipped; of one that failed, its name", nullable=True),
        "tests": Column("int64", "how many ended so, each set of parameters being one"),
        "seconds": Column("float64", "the time they took together, their setup and teardown included", unit="s"),
    }
)
NNUNET = Schema(
    {
        "planner": Column("str", "nnU-Net's planner, which chooses the network, its patch and its batch"),
        "network": Column("str", "the network's class"),
        "patch": Column("str", "a volume's size, as 128x160x112"),
        "batch": Column("int64", "volumes in a step"),
        "trainer": Column("str", "nnU-Net's trainer, as nnUNetv2_train takes it"),
        "epochs": Column("int64", "how many were timed"),
        "fastest_s": Column("float64", "the fastest epoch, of 250 training and 50 validation steps", unit="s"),
        **ORIGIN,
        "nnunetv2": Column("str", "version of nnU-Net", nullable=True),
    }
)
