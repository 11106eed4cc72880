"""Gaussian diffusion conditioned on a mask (Ho et al. 2020; Dorjsembe et al. 2024): loss and samplers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from medddpm.errors import BadArgument
from medddpm.fast.graphs import cuda_graphs
from medddpm.fast.reports import bars
from medddpm.noise import Generators, normal, normals, source_of
from medddpm.schedules import (
    DENSITIES,
    LOSSES,
    WEIGHTINGS,
    Values,
    check_choice,
    default_sampler,
    loss_weights,
    process,
    schedule,
)

SAMPLERS = ("ddpm", "ddim", "dpm++", "sde-dpm++")

_PUBLISHED = {
    "alpha": "sqrt_alphas_cumprod",
    "sigma": "sqrt_one_minus_alphas_cumprod",
    "clean_of_x": "sqrt_recip_alphas_cumprod",
    "clean_of_output": "sqrt_recipm1_alphas_cumprod",
}
"""The buffers that hold these tables of `medddpm.schedules.Process` where the noise is predicted, as published."""

# A sampler's step: (x, mask, t, coefficients, noise, x_0 of the previous step) to (x at the next t, x_0).
Step = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class GaussianDiffusion(nn.Module):
    """A denoising network with the schedule it is trained and sampled under.

    Its `state_dict` has the published names: the network's after ``denoise_fn.``, and the schedule's buffers, each
    (timesteps,) float32.

    Args:
        denoise_fn: ε_θ, a `UNet3D` or another network. It is called as `denoise_fn(x, t)` with x = cat([x_t, mask], 1),
            (N, C + M, D, H, W), and t (N,) int64, and returns the prediction as a tensor (N, C, D, H, W). `sample`
            reads C from its attribute `out_channels`. MONAI's `DiffusionModelUNet` fits as it is.
        timesteps: T.
        offset_noise: standard deviation of the offset added to each volume's noise in training; published: 0. Without
            it the noise of 128³ voxels has a mean of 0 ± 0.0007, a network learns to read any larger mean as the
            image's brightness, and a sample keeps the brightness that its first steps happened to give it, whatever
            its mask (Guttenberg 2023; Lin et al. 2024, section 3). 0.1 is usual.
        prediction: what the network predicts, and the schedule that goes with it: "noise" as published, "velocity" or
            "flow" (`medddpm.schedules.process`).
        loss_kind: "l1", the mean absolute error as published, or "l2", the mean squared one.
        weighting: weights of the timesteps in the loss: "none" as published, or "min-snr"
            (`medddpm.schedules.loss_weights`).
        density: of the timesteps that the loss draws: "uniform" as published, or "logit-normal", T times the logistic
            function of a standard normal number, which favours the middle (Esser et al. 2024, for rectified flow).

    Raises:
        BadArgument: one of the four is unknown, or `timesteps` too few for the prediction.
    """

    betas: Tensor
    alphas_cumprod: Tensor
    alphas_cumprod_prev: Tensor
    sqrt_alphas_cumprod: Tensor
    sqrt_one_minus_alphas_cumprod: Tensor
    log_one_minus_alphas_cumprod: Tensor
    sqrt_recip_alphas_cumprod: Tensor
    sqrt_recipm1_alphas_cumprod: Tensor
    posterior_variance: Tensor
    posterior_log_variance_clipped: Tensor
    posterior_mean_coef1: Tensor
    posterior_mean_coef2: Tensor
    alpha: Tensor
    sigma: Tensor

    def __init__(
        self,
        denoise_fn: nn.Module,
        timesteps: int = 250,
        offset_noise: float = 0.0,
        prediction: str = "noise",
        loss_kind: str = "l1",
        weighting: str = "none",
        density: str = "uniform",
    ) -> None:
        super().__init__()
        check_choice("loss_kind", loss_kind, LOSSES)
        check_choice("weighting", weighting, WEIGHTINGS)
        check_choice("density", density, DENSITIES)
        self.denoise_fn = denoise_fn
        self.timesteps = timesteps
        self.offset_noise = offset_noise
        self.prediction = prediction
        self.loss_kind = loss_kind
        self.weighting = weighting
        self.density = density
        for name, values in schedule(timesteps, prediction).items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32))
        # What only other predictions and weightings need is no part of the state dict, whose names are the published.
        tables: dict[str, Values] = {}
        if prediction != "noise":
            of = process(timesteps, prediction)
            tables = {name: getattr(of, name) for name in (*_PUBLISHED, "target_of_image", "target_of_noise")}
        if weighting != "none":
            tables["loss_weights"] = loss_weights(timesteps, prediction, weighting, loss_kind)
        for name, values in tables.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32), persistent=False)

    def add_noise(self, image: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """q(x_t | x_0), Ho et al. equation 4.

        Args:
            image: (N, C, D, H, W), x_0.
            t: (N,) int64.
            noise: as `image`, standard normal.
        """
        return self._at("alpha", t) * image + self._at("sigma", t) * noise

    def clean(self, x: Tensor, mask: Tensor, t: Tensor) -> Tensor:
        """Returns the x_0 that the network predicts, whatever its prediction, clamped to [-1, 1] as published.

        Args:
            x: (N, C, D, H, W), x_t.
            mask: (N, M, D, H, W).
            t: (N,) int64.

        Raises:
            BadArgument: the network returns another shape than x.
        """
        predicted = self._predicted(x, mask, t)
        clean = self._at("clean_of_x", t) * x - self._at("clean_of_output", t) * predicted
        return clean.clamp_(-1, 1)

    def timestep_at(self, ratio: float) -> int:
        """Returns the timestep whose noise-to-signal ratio σ/α is nearest to `ratio` > 0, by their logarithms."""
        alpha, sigma = self._alpha_sigma()
        distances = [
            abs(math.log(s / a / ratio)) if a > 0 else math.inf for a, s in zip(alpha[:-1], sigma[:-1], strict=True)
        ]
        return distances.index(min(distances))

    def loss(
        self,
        image: Tensor,
        mask: Tensor,
        *,
        t: Tensor | None = None,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Returns the mean error of the prediction, with one t for each volume, from `density` on 0 … T − 1.

        As published that is |ε − ε_θ(x_t ⊕ mask, t)|.

        Args:
            image: (N, C, D, H, W) in [-1, 1], floating point.
            mask: (N, M, D, H, W), floating point.
            t, noise: drawn from `generator` by default.
            generator: on any device; one on the CPU gives the same draws on every machine.

        Returns:
            the loss, a float32 scalar with its autograd graph.

        Raises:
            BadArgument: the network does not take the image or the mask, or returns another shape than the image's.
        """
        self._check_inputs(mask, image)
        if t is None:
            t = self._timesteps(len(image), generator, source_of(image, generator)).to(image.device)
        if noise is None:
            noise = normal(image, generator)
            if self.offset_noise:
                noise += self.offset_noise * normal(image[:, :, :1, :1, :1], generator)
        error = self._target(image, t, noise) - self._predicted(self.add_noise(image, t, noise), mask, t)
        error = error.abs() if self.loss_kind == "l1" else error.square()
        return (error if self.weighting == "none" else self._at("loss_weights", t) * error).mean()

    forward = loss  # for wrappers of `forward`: DistributedDataParallel, torch.compile

    @torch.no_grad()
    def sample(
        self,
        mask: Tensor,
        steps: int | None = None,
        sampler: str | None = None,
        *,
        generator: Generators = None,
        progress: bool = False,
        trajectory: list[Tensor] | None = None,
    ) -> Tensor:
        """Draws one volume for each mask.

        With a network accelerated on a GPU, a step is one CUDA graph, and the host never waits for the device.

        Args:
            mask: (N, M, D, H, W), on the network's device and of its floating-point dtype.
            steps: network evaluations; default T. "ddpm" takes exactly T, the others 1 … T.
            sampler: "ddpm" (ancestral, Ho et al. 2020), "ddim" (η = 0, Song et al. 2021; for a flow, Euler's steps of
                rectified flow), "dpm++" (DPM-Solver++(2M), Lu et al. 2022) or "sde-dpm++" (its stochastic form,
                SDE-DPM-Solver++(2M): fresh noise at every step replaces the network's earlier errors, which "ddim" and
                "dpm++" keep). Default "ddpm"; "ddim" for a flow, which "ddpm" cannot sample.
            generator: on any device; one on the CPU gives the same noise on every machine. With a sequence of N, each
                volume has its own generator, and the same noise in any batch.
            progress: shows a bar with its rate.
            trajectory: if given, receives the starting noise and x after every step.

        Returns:
            (N, C, D, H, W) in [-1, 1].

        Raises:
            BadArgument: the sampler is unknown, or cannot take that number of steps; the network does not take the
                mask, or does not say its `out_channels`; or there are not as many generators as masks.
        """
        sampler = sampler or default_sampler(self.prediction)
        steps = self.checked_steps(steps, sampler)
        self._check_inputs(mask)
        channels: int | None = getattr(self.denoise_fn, "out_channels", None)
        if channels is None:
            problem = f"{type(self.denoise_fn).__name__} has no attribute out_channels"
            raise BadArgument("denoise_fn", problem, "set it to the number of the image's channels")
        start = mask.new_zeros((mask.shape[0], channels, *mask.shape[2:]))
        times = self._times(steps, sampler)
        coefficients = self._coefficients(times, sampler)
        table = torch.tensor(coefficients, dtype=mask.dtype, device=mask.device)
        timesteps = torch.tensor(times, device=mask.device)[:, None].expand(-1, mask.shape[0])
        step = self._graphed(start, mask) if cuda_graphs.wanted(self.denoise_fn) else self._step

        noisy = [c != 0 for _, _, c, _ in coefficients]
        noises = normals(start, generator, 1 + sum(noisy))
        x, clean, noise = next(noises), start, start
        if trajectory is not None:
            trajectory.append(x.clone())
        rows: Iterable[int] = range(steps)
        if progress:
            from tqdm import tqdm  # which a user of `accelerate` may lack

            rows = tqdm(rows, desc=f"sampling, {sampler}", unit="step", **bars())
        for i in rows:
            noise = next(noises) if noisy[i] else noise
            x, clean = step(x, mask, timesteps[i], table[i], noise, clean)
            if trajectory is not None:
                trajectory.append(x.clone())
        return x.clone()  # a graph's next step would overwrite it

    def checked_steps(self, steps: int | None, sampler: str) -> int:
        """Returns the number of network evaluations that `sample` makes with these arguments.

        Raises:
            BadArgument: the sampler is unknown, cannot take that number of steps, or cannot sample this prediction.
        """
        steps = self.timesteps if steps is None else steps
        check_choice("sampler", sampler, SAMPLERS)
        if sampler == "ddpm" and self.prediction == "flow":
            problem = "the network predicts a flow, and ddpm's posterior is that of another schedule"
            raise BadArgument("sampler", problem, f"choose one of {', '.join(SAMPLERS[1:])}")
        if sampler == "ddpm" and steps != self.timesteps:
            problem = f"ddpm takes all {self.timesteps} steps, not {steps}"
            raise BadArgument("steps", problem, "for fewer choose another sampler")
        if not 1 <= steps <= self.timesteps:
            raise BadArgument("steps", f"{sampler} cannot take {steps}", f"choose 1 to {self.timesteps}")
        return steps

    def _check_inputs(self, mask: Tensor, image: Tensor | None = None) -> None:
        """Refuses a mask or image that the network cannot take; the network's error would count both channels together.

        Raises:
            BadArgument: the dtype is no floating-point one, or the shape does not fit.
        """
        network: Any = self.denoise_fn
        for name, tensor in (("image", image), ("mask", mask)):
            if tensor is None:
                continue
            if not tensor.is_floating_point():
                raise BadArgument(name, f"its dtype is {tensor.dtype}", f"give floating-point numbers: {name}.float()")
            fits, takes = tensor.dim() == 5, "give (N, channels, D, H, W)"
            if hasattr(network, "takes"):  # a `UNet3D`; other networks do not declare their inputs
                channels = network.out_channels if name == "image" else network.in_channels - network.out_channels
                fits = (
                    fits and tensor.shape[1] == channels and not any(side % network.stride for side in tensor.shape[2:])
                )
                takes = f"this network takes (N, {channels}, D, H, W) with D, H and W multiples of {network.stride}"
            if not fits:
                raise BadArgument(name, f"it is {tuple(tensor.shape)}", takes)
        if image is not None and (image.shape[0], image.shape[2:]) != (mask.shape[0], mask.shape[2:]):
            problem = f"it is {tuple(mask.shape)}, and the image {tuple(image.shape)}"
            raise BadArgument("mask", problem, "give both with the same N, D, H and W")

    def _predicted(self, x: Tensor, mask: Tensor, t: Tensor) -> Tensor:
        """Returns the network's prediction for x.

        Raises:
            BadArgument: it has another shape than x, with which it would be broadcast.
        """
        predicted = self.denoise_fn(torch.cat([x, mask], dim=1), t)
        if not isinstance(predicted, Tensor) or predicted.shape != x.shape:
            returned = tuple(predicted.shape) if isinstance(predicted, Tensor) else f"a {type(predicted).__name__}"
            problem = f"{type(self.denoise_fn).__name__} returns {returned} for an image {tuple(x.shape)}"
            raise BadArgument("denoise_fn", problem, "give a network that returns one tensor of the image's shape")
        return predicted

    def _timesteps(self, count: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        """Draws timesteps for the loss, (count,) int64, on a device."""
        if self.density == "uniform":
            return torch.randint(self.timesteps, (count,), generator=generator, device=device)
        places = torch.randn(count, generator=generator, device=device).sigmoid()
        return (places * self.timesteps).long().clamp_(max=self.timesteps - 1)

    def _target(self, image: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """Returns what the network should predict, in the image's shape."""
        if self.prediction == "noise":
            return noise
        return self._at("target_of_image", t) * image + self._at("target_of_noise", t) * noise

    def _at(self, table: str, t: Tensor) -> Tensor:
        """Returns the values of a table of `medddpm.schedules` at each of t (N,), as (N, 1, 1, 1, 1)."""
        name = _PUBLISHED.get(table, table) if self.prediction == "noise" else table
        values: Tensor = getattr(self, name)
        return values[t].view(-1, 1, 1, 1, 1)

    def _step(
        self, x: Tensor, mask: Tensor, t: Tensor, coefficients: Tensor, noise: Tensor, clean_before: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Makes one step of any sampler: the network's x_0, then x at the next timestep by a row of `_coefficients`.

        A CUDA graph captures this, so nothing here depends on a value on the host.

        Args:
            x: (N, C, D, H, W).
            mask: (N, M, D, H, W).
            t: (N,) int64.
            coefficients: (4,).
            noise, clean_before: as `x`; finite even where their coefficient is 0.

        Returns:
            x at the next timestep, and x_0, clamped to [-1, 1] as published.
        """
        clean = self.clean(x, mask, t)
        of_x, of_clean, of_noise, of_clean_before = coefficients.unbind()
        return of_clean * clean + of_x * x + of_noise * noise + of_clean_before * clean_before, clean

    def _graphed(self, start: Tensor, mask: Tensor) -> Step:
        def capture() -> cuda_graphs.GraphedCall[tuple[Tensor, Tensor]]:
            t = torch.zeros(mask.shape[:1], dtype=torch.int64, device=mask.device)
            return cuda_graphs.GraphedCall(self._step, start, mask, t, start.new_zeros(4), start, start)

        return cuda_graphs.cached(self, self.denoise_fn, (mask.shape, mask.dtype), capture)

    def _times(self, steps: int, sampler: str) -> list[int]:
        """Returns `steps` timesteps from T − 1 down to 0, each at most once.

        They are evenly spaced in t; for dpm++ in λ = log(α/σ), as its authors advise, except at the ends, where one
        timestep may span more λ than a step. DDIM's are spaced as published for the noise; for other predictions so
        that the step to the clean image is as long as the others (Lin et al. 2024, section 3.3, "trailing").
        """
        last = self.timesteps - 1
        times = np.linspace(last, 0, steps).round().astype(int)
        if sampler == "ddim" and self.prediction != "noise":
            times = np.linspace(self.timesteps, 0, steps, endpoint=False).round().astype(int) - 1
        if sampler.endswith("dpm++"):
            alpha, sigma = (np.array(table[:-1]) for table in self._alpha_sigma())
            first = last if alpha[last] > 0 else last - 1  # where λ is finite
            half_snr = np.log(alpha[: first + 1] / sigma[: first + 1])
            levels = np.linspace(half_snr[first], half_snr[0], steps)
            times = np.interp(levels, half_snr[::-1], np.arange(first, -1, -1)).round().astype(int)
            times[0] = last
            offset = np.arange(steps)
            times = np.minimum.accumulate(times + offset) - offset  # strictly down…
            times = np.maximum(times, offset[::-1])  # …with a timestep left for each step to come
        return times.tolist()

    def _coefficients(self, times: Sequence[int], sampler: str) -> list[tuple[float, float, float, float]]:
        """Returns the weights of x, x_0, fresh noise and the previous x_0 in x at the next timestep, a row a step."""
        if sampler.endswith("dpm++"):
            return self._dpm_solver(times, stochastic=sampler.startswith("sde"))
        return {"ddpm": self._ancestral, "ddim": self._ddim}[sampler](times)

    def _ancestral(self, times: Sequence[int]) -> list[tuple[float, float, float, float]]:
        """Ho et al. algorithm 2: the posterior's mean, plus its noise in all steps but the last."""
        std = (0.5 * self.posterior_log_variance_clipped).exp().tolist()
        of_x, of_clean = self.posterior_mean_coef2.tolist(), self.posterior_mean_coef1.tolist()
        return [(of_x[t], of_clean[t], std[t] if t > 0 else 0.0, 0.0) for t in times]

    def _alpha_sigma(self) -> tuple[list[float], list[float]]:
        """α and σ of every timestep; index -1 is the clean image's."""
        if self.prediction != "noise":
            return [*self.alpha.double().tolist(), 1.0], [*self.sigma.double().tolist(), 0.0]
        alphas_cumprod = [*self.alphas_cumprod.double().tolist(), 1.0]
        return [math.sqrt(a) for a in alphas_cumprod], [math.sqrt(1 - a) for a in alphas_cumprod]

    def _ddim(self, times: Sequence[int]) -> list[tuple[float, float, float, float]]:
        """Song et al. equation 12 with σ = 0: scales the noise in x, (x − α x_0) / σ, to its next level.

        With the α and σ of rectified flow that is a step of Euler's method along the predicted flow.
        """
        alpha, sigma = self._alpha_sigma()
        rows = []
        for t, following in zip(times, [*times[1:], -1], strict=True):
            scale = sigma[following] / sigma[t]
            rows.append((scale, alpha[following] - scale * alpha[t], 0.0, 0.0))
        return rows

    def _dpm_solver(self, times: Sequence[int], stochastic: bool) -> list[tuple[float, float, float, float]]:
        """DPM-Solver++(2M), Lu et al. 2022 algorithm 2: extrapolates x_0 in λ = log(α/σ) from this step and the last.

        Stochastic: SDE-DPM-Solver++(2M), the same for the diffusion's SDE. It keeps e^(-h) of the noise and draws as
        much anew as keeps its variance.

        The first step (no predecessor) and the last (to λ = ∞, where nothing can be extrapolated) are of first order;
        so is the second if the first began without any signal, at λ = -∞.
        """
        alpha, sigma = self._alpha_sigma()
        rows = []
        h_before = math.inf  # the last step's length in λ

        def half_snr(t: int) -> float:
            return math.log(alpha[t] / sigma[t]) if alpha[t] else -math.inf

        for t, following in itertools.pairwise(times):
            h = half_snr(following) - half_snr(t)
            forgotten = -math.expm1(-2 * h if stochastic else -h)
            scale = sigma[following] / sigma[t] * (math.exp(-h) if stochastic else 1.0)
            fresh = sigma[following] * math.sqrt(forgotten) if stochastic else 0.0
            weight = alpha[following] * forgotten
            extrapolation = 0.5 * h / h_before if math.isfinite(h) else 0.0
            rows.append((scale, weight * (1 + extrapolation), fresh, -weight * extrapolation))
            h_before = h
        return [*rows, (0.0, 1.0, 0.0, 0.0)]
