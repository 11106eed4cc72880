"""Gaussian diffusion conditioned on a mask (Ho et al. 2020; Dorjsembe et al. 2024): schedule, loss and samplers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

SAMPLERS = ("ddpm", "ddim", "dpm++")

# A sampler's step: (x_t, x_0 as the network sees it, t, the next t) to x at the next t; -1 stands for the clean image.
Update = Callable[[Tensor, Tensor, int, int], Tensor]


def cosine_betas(timesteps: int) -> np.ndarray:
    """The cosine schedule of Nichol & Dhariwal (2021) as the published model has it.

    With `n = timesteps + 1`, the published code lets x run to n in n points, not to `timesteps`; kept, since the
    released weights were trained so.

    Returns:
        (timesteps,) float64 β, each in [0, 0.999].
    """
    n = timesteps + 1
    x = np.linspace(0, n, n)
    alphas_cumprod = np.cos(((x / n) + 0.008) / 1.008 * np.pi / 2) ** 2
    alphas_cumprod /= alphas_cumprod[0]
    betas: np.ndarray = np.clip(1 - alphas_cumprod[1:] / alphas_cumprod[:-1], 0, 0.999)
    return betas


class GaussianDiffusion(nn.Module):
    """A denoising network with the schedule it is trained and sampled under.

    Its `state_dict` has the published names: the network's behind ``denoise_fn.``, and the schedule's buffers, each
    (timesteps,) float32.

    Args:
        denoise_fn: ε_θ, called as `denoise_fn(cat([x_t, mask], 1), t)`; x (N, C + M, D, H, W), t (N,) int64.
        timesteps: T.
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

    def __init__(self, denoise_fn: nn.Module, timesteps: int = 250) -> None:
        super().__init__()
        self.denoise_fn = denoise_fn
        self.timesteps = timesteps

        betas = cosine_betas(timesteps)
        alphas = 1 - betas
        alphas_cumprod = np.cumprod(alphas)
        previous = np.append(1.0, alphas_cumprod[:-1])
        variance = betas * (1 - previous) / (1 - alphas_cumprod)
        schedule = {
            "betas": betas,
            "alphas_cumprod": alphas_cumprod,
            "alphas_cumprod_prev": previous,
            # noising, Ho et al. equation 4
            "sqrt_alphas_cumprod": np.sqrt(alphas_cumprod),
            "sqrt_one_minus_alphas_cumprod": np.sqrt(1 - alphas_cumprod),
            "log_one_minus_alphas_cumprod": np.log(1 - alphas_cumprod),
            # x_0 from x_t and ε: the same equation solved for x_0
            "sqrt_recip_alphas_cumprod": np.sqrt(1 / alphas_cumprod),
            "sqrt_recipm1_alphas_cumprod": np.sqrt(1 / alphas_cumprod - 1),
            # the posterior q(x_{t-1} | x_t, x_0), equations 6 and 7; its variance is 0 at t = 0, hence the floor
            "posterior_variance": variance,
            "posterior_log_variance_clipped": np.log(np.maximum(variance, 1e-20)),
            "posterior_mean_coef1": betas * np.sqrt(previous) / (1 - alphas_cumprod),
            "posterior_mean_coef2": (1 - previous) * np.sqrt(alphas) / (1 - alphas_cumprod),
        }
        for name, values in schedule.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32))

    def add_noise(self, image: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """q(x_t | x_0), Ho et al. equation 4.

        Args:
            image: (N, C, D, H, W), x_0.
            t: (N,) int64.
            noise: as `image`, standard normal.
        """
        shape = (-1, 1, 1, 1, 1)
        return (
            self.sqrt_alphas_cumprod[t].view(shape) * image + self.sqrt_one_minus_alphas_cumprod[t].view(shape) * noise
        )

    def loss(
        self,
        image: Tensor,
        mask: Tensor,
        *,
        t: Tensor | None = None,
        noise: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Mean |ε − ε_θ(x_t ⊕ mask, t)|, t uniform on 0 … T − 1, one for each volume.

        Args:
            image: (N, C, D, H, W) in [-1, 1].
            mask: (N, M, D, H, W).
            t, noise: drawn from `generator` where not given.
            generator: of any device; a CPU one gives the same draws on every machine.

        Returns:
            the loss, a float32 scalar with its graph.
        """
        if t is None:
            source = generator.device if generator is not None else image.device
            t = torch.randint(self.timesteps, image.shape[:1], generator=generator, device=source).to(image.device)
        if noise is None:
            noise = _normal(image, generator)
        predicted: Tensor = self.denoise_fn(torch.cat([self.add_noise(image, t, noise), mask], dim=1), t)
        return (noise - predicted).abs().mean()

    forward = loss  # so that DistributedDataParallel, which wraps `forward`, can train it

    @torch.no_grad()
    def sample(
        self,
        mask: Tensor,
        steps: int | None = None,
        sampler: str = "ddpm",
        *,
        generator: torch.Generator | None = None,
        progress: bool = False,
        trajectory: list[Tensor] | None = None,
    ) -> Tensor:
        """Draws one volume for each mask.

        Args:
            mask: (N, M, D, H, W), on the network's device.
            steps: network evaluations; default T. "ddpm" takes exactly T, the others 1 … T.
            sampler: "ddpm" (ancestral, Ho et al. 2020), "ddim" (η = 0, Song et al. 2021) or
                "dpm++" (DPM-Solver++(2M), Lu et al. 2022).
            generator: of any device; a CPU one gives the same noise on every machine.
            progress: shows a bar with its rate.
            trajectory: where given, receives x after every step, the starting noise first.

        Returns:
            (N, C, D, H, W) in [-1, 1].

        Raises:
            ValueError: on an unknown sampler, or a number of steps it cannot take.
        """
        steps = self.timesteps if steps is None else steps
        if sampler not in SAMPLERS:
            raise ValueError(f"sampler is {sampler!r}: choose one of {', '.join(SAMPLERS)}")
        if sampler == "ddpm" and steps != self.timesteps:
            raise ValueError(f"ddpm takes all {self.timesteps} steps, not {steps}: for fewer choose ddim or dpm++")
        if not 1 <= steps <= self.timesteps:
            raise ValueError(f"steps is {steps}: choose 1 to {self.timesteps}")

        channels: int = self.denoise_fn.out_channels  # type: ignore[assignment]
        x = _normal(mask.new_empty((mask.shape[0], channels, *mask.shape[2:])), generator)
        if trajectory is not None:
            trajectory.append(x)
        times = self._times(steps, sampler)
        update = {"ddpm": self._ancestral, "ddim": self._ddim, "dpm++": self._dpm_solver}[sampler](generator)
        for i, t in enumerate(tqdm(times, desc=f"sampling, {sampler}", unit="step", disable=not progress)):
            x = update(x, self._denoise(x, mask, t), t, times[i + 1] if i + 1 < steps else -1)
            if trajectory is not None:
                trajectory.append(x)
        return x

    def _times(self, steps: int, sampler: str) -> list[int]:
        """`steps` timesteps from T − 1 down to 0: even in t, but for dpm++ even in λ = log(α/σ), as its authors advise.

        At both ends one timestep may span more λ than a step; each timestep is used once all the same.
        """
        last = self.timesteps - 1
        times = np.linspace(last, 0, steps).round().astype(int)
        if sampler == "dpm++":
            alphas_cumprod = self.alphas_cumprod.double().cpu().numpy()
            half_snr = 0.5 * np.log(alphas_cumprod / (1 - alphas_cumprod))
            wanted = np.linspace(half_snr[last], half_snr[0], steps)
            times = np.interp(wanted, half_snr[::-1], np.arange(last, -1, -1)).round().astype(int)
            offset = np.arange(steps)
            times = np.minimum.accumulate(times + offset) - offset  # strictly down…
            times = np.maximum(times, offset[::-1])  # …with a timestep left for each step to come
        return times.tolist()

    def _denoise(self, x: Tensor, mask: Tensor, t: int) -> Tensor:
        """x_0 as the network sees it at timestep t, clamped to [-1, 1] as published."""
        noise: Tensor = self.denoise_fn(torch.cat([x, mask], dim=1), torch.full(x.shape[:1], t, device=x.device))
        clean = self.sqrt_recip_alphas_cumprod[t] * x - self.sqrt_recipm1_alphas_cumprod[t] * noise
        return clean.clamp_(-1, 1)

    def _ancestral(self, generator: torch.Generator | None) -> Update:
        """Ho et al. algorithm 2: the posterior's mean, and its noise but for the last step."""

        def update(x: Tensor, clean: Tensor, t: int, _next: int) -> Tensor:
            mean = self.posterior_mean_coef1[t] * clean + self.posterior_mean_coef2[t] * x
            if t == 0:
                return mean
            return mean + (0.5 * self.posterior_log_variance_clipped[t]).exp() * _normal(x, generator)

        return update

    def _alpha_sigma(self) -> tuple[list[float], list[float]]:
        """√ᾱ and √(1 − ᾱ) of every timestep; index -1 is the clean image's."""
        alphas_cumprod = [*self.alphas_cumprod.double().tolist(), 1.0]
        return [math.sqrt(a) for a in alphas_cumprod], [math.sqrt(1 - a) for a in alphas_cumprod]

    def _ddim(self, _generator: torch.Generator | None) -> Update:
        """Song et al. equation 12 with σ = 0."""
        alpha, sigma = self._alpha_sigma()

        def update(x: Tensor, clean: Tensor, t: int, following: int) -> Tensor:
            noise = (x - alpha[t] * clean) / sigma[t]
            return alpha[following] * clean + sigma[following] * noise

        return update

    def _dpm_solver(self, _generator: torch.Generator | None) -> Update:
        """DPM-Solver++(2M), Lu et al. 2022 algorithm 2: x_0 extrapolated in λ = log(α/σ) from this step and the last.

        The first step has no predecessor, and the last goes to λ = ∞ where extrapolation has no meaning: first order.
        """
        alpha, sigma = self._alpha_sigma()
        before: tuple[Tensor, float] | None = None  # the last step's x_0, and its length in λ

        def update(x: Tensor, clean: Tensor, t: int, following: int) -> Tensor:
            nonlocal before
            if following == -1:
                return clean
            h = math.log(alpha[following] / sigma[following]) - math.log(alpha[t] / sigma[t])
            extrapolated = clean
            if before is not None:
                clean_before, h_before = before
                extrapolated = clean + 0.5 * h / h_before * (clean - clean_before)
            before = (clean, h)
            return sigma[following] / sigma[t] * x - alpha[following] * math.expm1(-h) * extrapolated

        return update


def _normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal of `like`'s shape, dtype and device, drawn on the generator's device."""
    source = generator.device if generator is not None else like.device
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=source).to(like.device)
