"""Noise schedules, and the three quantities that a network can predict: the noise, the velocity or the flow.

Each is a table over timesteps of x_t = α x_0 + σ ε and of the target c x_0 + d ε. The two equations together give
x_0 = (d x_t - σ target) / (d α - c σ), which is all that a sampler needs of a prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medddpm.errors import BadArgument

Values = npt.NDArray[np.float64]
"""A value for each timestep, (timesteps,)."""

PREDICTIONS = ("noise", "velocity", "flow")
LOSSES = ("l1", "l2")
WEIGHTINGS = ("none", "min-snr")
DENSITIES = ("uniform", "logit-normal")
GAMMA = 5.0  # of min-SNR: the value that Hang et al. recommend


def cosine_betas(timesteps: int) -> Values:
    """The cosine schedule of Nichol & Dhariwal (2021) as the published model computes it.

    With `n = timesteps + 1`, the published code takes n points from 0 to n, not to `timesteps`. The released weights
    were trained with that.

    Returns:
        (timesteps,) float64 β, each in [0, 0.999].
    """
    n = timesteps + 1
    x = np.linspace(0, n, n)
    alphas_cumprod = np.cos(((x / n) + 0.008) / 1.008 * np.pi / 2) ** 2
    alphas_cumprod /= alphas_cumprod[0]
    betas: Values = np.clip(1 - alphas_cumprod[1:] / alphas_cumprod[:-1], 0, 0.999)
    return betas


def zero_terminal(alphas_cumprod: Values) -> Values:
    """Returns ᾱ rescaled so that the last is 0: x_T is noise alone, as it is where sampling begins.

    √ᾱ is shifted to end at 0, then scaled to begin where it began: Lin et al. 2024 ("Common diffusion noise schedules
    and sample steps are flawed"), algorithm 1.
    """
    roots: Values = np.sqrt(alphas_cumprod)
    rescaled: Values = ((roots - roots[-1]) * roots[0] / (roots[0] - roots[-1])) ** 2
    return rescaled


def schedule(timesteps: int, prediction: str = "noise") -> dict[str, Values]:
    """Returns every table of a schedule, each (timesteps,) float64, by its published name.

    Args:
        timesteps: T.
        prediction: "noise" has the published schedule, "velocity" the published one with zero terminal SNR. "flow" has
            the variance-preserving schedule of the same signal-to-noise ratio: x_t / √(α² + σ²) follows it.

    Raises:
        BadArgument: as `process`.
    """
    betas = cosine_betas(timesteps)
    alphas_cumprod = np.cumprod(1 - betas, dtype=np.float64)
    check_prediction(prediction, timesteps)
    if prediction == "velocity":
        alphas_cumprod = zero_terminal(alphas_cumprod)
    elif prediction == "flow":
        signal, noise = _straight(timesteps)
        alphas_cumprod = signal**2 / (signal**2 + noise**2)
    previous = np.append(1.0, alphas_cumprod[:-1])
    if prediction != "noise":
        betas = 1 - alphas_cumprod / previous
    variance = betas * (1 - previous) / (1 - alphas_cumprod)
    # Where ᾱ = 0, x_t holds nothing of x_0; 0 stands for the infinite factor, because weights in a file are finite.
    recip = np.divide(1, alphas_cumprod, out=np.zeros(timesteps), where=alphas_cumprod > 0)
    return {
        "betas": betas,
        "alphas_cumprod": alphas_cumprod,
        "alphas_cumprod_prev": previous,
        # noising, Ho et al. equation 4
        "sqrt_alphas_cumprod": np.sqrt(alphas_cumprod),
        "sqrt_one_minus_alphas_cumprod": np.sqrt(1 - alphas_cumprod),
        "log_one_minus_alphas_cumprod": np.log(1 - alphas_cumprod),
        # x_0 from x_t and ε: the same equation solved for x_0
        "sqrt_recip_alphas_cumprod": np.sqrt(recip),
        "sqrt_recipm1_alphas_cumprod": np.sqrt(np.maximum(recip - 1, 0)),
        # the posterior q(x_{t-1} | x_t, x_0), equations 6 and 7; its variance is 0 at t = 0, hence the floor
        "posterior_variance": variance,
        "posterior_log_variance_clipped": np.log(np.maximum(variance, 1e-20)),
        "posterior_mean_coef1": betas * np.sqrt(previous) / (1 - alphas_cumprod),
        "posterior_mean_coef2": (1 - previous) * np.sqrt(1 - betas) / (1 - alphas_cumprod),
    }


@dataclass(frozen=True)
class Process:
    """The tables of a prediction, each (timesteps,) float64.

    Args:
        alpha, sigma: x_t = alpha x_0 + sigma ε.
        target_of_image, target_of_noise: the target is target_of_image x_0 + target_of_noise ε.
    """

    alpha: Values
    sigma: Values
    target_of_image: Values
    target_of_noise: Values

    @property
    def clean_of_x(self) -> Values:
        """The factor of x_t in x_0 = clean_of_x x_t - clean_of_output output."""
        return self.target_of_noise / self._divisor

    @property
    def clean_of_output(self) -> Values:
        """The factor of the network's output in x_0, without its sign."""
        return self.sigma / self._divisor

    @property
    def _divisor(self) -> Values:
        return self.target_of_noise * self.alpha - self.target_of_image * self.sigma


def process(timesteps: int, prediction: str) -> Process:
    """Returns the tables of a prediction.

    - "noise": ε (Ho et al. 2020).
    - "velocity": v = α ε - σ x_0 (Salimans & Ho 2022), under a schedule of zero terminal SNR (Lin et al. 2024). There
      the noise is no target: at x_T, which is noise, it is known and says nothing of x_0.
    - "flow": ε - x_0, on the straight line x_t = (1 - s) x_0 + s ε (Liu et al. 2023, rectified flow), with
      s = 1/T, 2/T, … 1.

    Raises:
        BadArgument: the prediction is unknown, or has too few timesteps.
    """
    check_prediction(prediction, timesteps)
    ones = np.ones(timesteps)
    if prediction == "flow":
        return Process(*_straight(timesteps), -ones, ones)
    tables = schedule(timesteps, prediction)
    alpha, sigma = tables["sqrt_alphas_cumprod"], tables["sqrt_one_minus_alphas_cumprod"]
    if prediction == "velocity":
        return Process(alpha, sigma, -sigma, alpha)
    return Process(alpha, sigma, 0 * ones, ones)


def loss_weights(timesteps: int, prediction: str, weighting: str, loss: str) -> Values:
    """Returns the weight of the error of the network's output at each timestep.

    "min-snr" (Hang et al. 2023) weighs the squared error of x_0 by min(α²/σ², `GAMMA`). The error of x_0 is
    `clean_of_output` times the output's, whose weight is therefore its square times that: min(SNR, γ)/SNR for the noise
    and min(SNR, γ)/(SNR + 1) for the velocity, as in the paper, and σ² min(SNR, γ) for the flow. An absolute error has
    the root of the weight, which scales errors alike; that is a choice. x_T without any signal has weight 0.

    Args:
        timesteps, prediction: as for `process`.
        weighting: of `WEIGHTINGS`.
        loss: of `LOSSES`.
    """
    tables = process(timesteps, prediction)
    if weighting == "none":
        return np.ones(timesteps)
    weights = tables.clean_of_output**2 * np.minimum((tables.alpha / tables.sigma) ** 2, GAMMA)
    return np.sqrt(weights) if loss == "l1" else weights


def default_sampler(prediction: str) -> str:
    """Returns the sampler for a model that recommends none: the published one, where its schedule allows that."""
    return "ddim" if prediction == "flow" else "ddpm"


def check_prediction(prediction: str, timesteps: int) -> None:
    """Checks that there is such a prediction, with so many timesteps.

    Raises:
        BadArgument: there is none; or a single timestep, where a schedule would have to be clean and noise at once.
    """
    check_choice("prediction", prediction, PREDICTIONS)
    if prediction != "noise" and timesteps < 2:
        raise BadArgument("timesteps", f"{prediction} cannot have {timesteps}", "give 2 or more")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Checks an argument that is one of several names.

    Raises:
        BadArgument: it is none of them.
    """
    if value not in choices:
        raise BadArgument(name, f"there is no {value!r}", f"choose one of {', '.join(choices)}")


def _straight(timesteps: int) -> tuple[Values, Values]:
    """Returns α and σ of rectified flow."""
    noise = np.arange(1, timesteps + 1) / timesteps
    return 1 - noise, noise
