"""Predictions and loss weights against closed forms, and the samplers under them: a Gaussian image is known exactly."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from medddpm.diffusion import SAMPLERS, GaussianDiffusion
from medddpm.errors import BadArgument
from medddpm.schedules import PREDICTIONS, loss_weights, process, schedule

T = 250


class Known(nn.Module):
    """Predicts exactly, for images from N(0, s²): E[x_0 | x] = α s² x / (α² s² + σ²), and the noise from that."""

    out_channels = 1

    def __init__(self, std: float, prediction: str, timesteps: int = T) -> None:
        super().__init__()
        self.variance, self.of = std**2, process(timesteps, prediction)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        alpha, sigma, c, d = (
            torch.tensor(table)[t].view(-1, 1, 1, 1, 1)
            for table in (self.of.alpha, self.of.sigma, self.of.target_of_image, self.of.target_of_noise)
        )
        x = x[:, :1].double()
        spread = alpha**2 * self.variance + sigma**2
        clean, noise = alpha * self.variance / spread * x, sigma / spread * x
        return (c * clean + d * noise).float()


def known(std: float, prediction: str, timesteps: int = T, **how: str) -> GaussianDiffusion:
    return GaussianDiffusion(Known(std, prediction, timesteps), timesteps, prediction=prediction, **how)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_image_follows_from_x_and_the_target(prediction: str) -> None:
    of, draws = process(T, prediction), np.random.default_rng(0)
    image, noise = draws.uniform(-1, 1, T), draws.standard_normal(T)
    target = of.target_of_image * image + of.target_of_noise * noise
    x = of.alpha * image + of.sigma * noise
    np.testing.assert_allclose(of.clean_of_x * x - of.clean_of_output * target, image, rtol=1e-9, atol=1e-9)


def test_each_prediction_is_its_papers() -> None:
    noise, velocity, flow = (process(T, prediction) for prediction in PREDICTIONS)
    published = schedule(T)
    np.testing.assert_array_equal(noise.alpha, published["sqrt_alphas_cumprod"])
    np.testing.assert_allclose(noise.clean_of_x, published["sqrt_recip_alphas_cumprod"], rtol=1e-12)
    np.testing.assert_allclose(noise.clean_of_output, published["sqrt_recipm1_alphas_cumprod"], rtol=1e-6)
    np.testing.assert_allclose(velocity.alpha**2 + velocity.sigma**2, 1)  # v = α ε − σ x_0
    np.testing.assert_array_equal(velocity.target_of_noise, velocity.alpha)
    np.testing.assert_array_equal(velocity.target_of_image, -velocity.sigma)
    np.testing.assert_allclose(flow.alpha + flow.sigma, 1)  # x_t = (1 − s) x_0 + s ε, and ε − x_0
    assert set(flow.target_of_noise) == {1.0}
    assert set(flow.target_of_image) == {-1.0}


def test_the_rescaled_schedule_ends_in_noise_and_begins_as_published() -> None:
    """Lin et al. 2024, algorithm 1, written out."""
    roots = schedule(T)["sqrt_alphas_cumprod"]
    rescaled = process(T, "velocity").alpha
    assert rescaled[-1] == 0
    assert rescaled[0] == pytest.approx(roots[0], rel=1e-12)
    np.testing.assert_allclose(rescaled, (roots - roots[-1]) * roots[0] / (roots[0] - roots[-1]))


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_state_dict_has_the_published_names_and_finite_numbers(prediction: str) -> None:
    state = GaussianDiffusion(nn.Identity(), T, prediction=prediction, weighting="min-snr").state_dict()
    assert state.keys() == GaussianDiffusion(nn.Identity(), T).state_dict().keys()
    assert all(bool(table.isfinite().all()) and table.shape == (T,) for table in state.values())
    of = process(T, prediction)
    snr = state["alphas_cumprod"].double() / (1 - state["alphas_cumprod"].double())
    np.testing.assert_allclose(snr[40:], (of.alpha / of.sigma)[40:] ** 2, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("prediction", ["velocity", "flow"])
def test_the_loss_is_the_error_of_the_target(prediction: str) -> None:
    image, mask = torch.rand(3, 1, 4, 4, 4) * 2 - 1, torch.zeros(3, 2, 4, 4, 4)
    noise, t = torch.randn_like(image), torch.tensor([0, 120, T - 1])
    of = process(T, prediction)
    alpha, sigma = (torch.tensor(table, dtype=torch.float32)[t].view(-1, 1, 1, 1, 1) for table in (of.alpha, of.sigma))
    target = alpha * noise - sigma * image if prediction == "velocity" else noise - image
    for loss_kind, mean in (("l1", nn.functional.l1_loss), ("l2", nn.functional.mse_loss)):
        diffusion = known(0.3, prediction, loss_kind=loss_kind)
        predicted = diffusion.denoise_fn(alpha * image + sigma * noise, t)
        torch.testing.assert_close(diffusion.loss(image, mask, t=t, noise=noise), mean(predicted, target))


def test_min_snr_weighs_as_the_paper_does() -> None:
    """Hang et al. 2023: min(SNR, 5)/SNR for the noise, min(SNR, 5)/(SNR + 1) for the velocity."""
    for prediction in PREDICTIONS:
        of = process(T, prediction)
        snr = (of.alpha / of.sigma) ** 2
        capped = np.minimum(snr, 5)
        expected = {"noise": capped / snr if snr.all() else 0, "velocity": capped / (snr + 1)}
        expected["flow"] = of.sigma**2 * capped
        weights = loss_weights(T, prediction, "min-snr", "l2")
        np.testing.assert_allclose(weights, expected[prediction], rtol=1e-6)
        np.testing.assert_allclose(loss_weights(T, prediction, "min-snr", "l1") ** 2, weights)


def test_a_weighted_loss_is_the_weighted_mean_of_its_volumes() -> None:
    image, mask, noise = torch.rand(2, 1, 4, 4, 4), torch.zeros(2, 2, 4, 4, 4), torch.randn(2, 1, 4, 4, 4)
    t = torch.tensor([10, 200])
    plain, weighted = (known(0.3, "noise", loss_kind="l2", weighting=each) for each in ("none", "min-snr"))
    each = [float(plain.loss(image[i : i + 1], mask[:1], t=t[i : i + 1], noise=noise[i : i + 1])) for i in (0, 1)]
    weights = loss_weights(T, "noise", "min-snr", "l2")[t.numpy()]
    assert weights[0] < 0.5 < weights[1]
    loss = float(weighted.loss(image, mask, t=t, noise=noise))
    assert loss == pytest.approx((weights * each).mean(), rel=1e-5)


def test_timesteps_are_drawn_as_said() -> None:
    drawn = {
        density: known(0.3, "flow", density=density)._timesteps(40_000, torch.Generator().manual_seed(0), "cpu")
        for density in ("uniform", "logit-normal")
    }
    for density, t in drawn.items():
        assert t.dtype == torch.int64
        assert 0 <= t.min() <= t.max() < T
        # of a standard normal number's, a quarter of the logistic function's values are above 0.6625, and so below
        upper = 0.75 if density == "uniform" else 0.6625
        assert float((t >= upper * T).float().mean()) == pytest.approx(0.25, abs=0.02)
        assert float((t < (1 - upper) * T).float().mean()) == pytest.approx(0.25, abs=0.02)
    with pytest.raises(BadArgument, match="density: there is no 'cosine'; choose one of uniform, logit-normal"):
        known(0.3, "flow", density="cosine")


CAN = [
    (prediction, sampler)
    for prediction in PREDICTIONS
    for sampler in SAMPLERS
    if (prediction, sampler) != ("flow", "ddpm")
]


@pytest.mark.parametrize(("prediction", "sampler"), CAN)
def test_a_sample_has_the_images_distribution(prediction: str, sampler: str) -> None:
    std, mask = 0.2, torch.zeros(1, 2, 16, 32, 32)
    diffusion = known(std, prediction)
    for steps in (T,) if sampler == "ddpm" else (T, 60):
        sample = diffusion.sample(mask, steps, sampler, generator=torch.Generator().manual_seed(0))
        assert sample.mean().abs() < 0.01
        assert sample.std() == pytest.approx(std, rel=0.1)


@pytest.mark.parametrize("steps", [1, 20, T])
def test_ddims_step_of_a_flow_is_eulers(steps: int) -> None:
    """dx/ds = u, so x at the next s is x + (s' − s) u, in equal steps from 1 down to 0."""
    diffusion, path = known(0.1, "flow"), list[Tensor]()
    diffusion.sample(
        torch.zeros(1, 2, 4, 4, 4), steps, "ddim", generator=torch.Generator().manual_seed(2), trajectory=path
    )
    times = diffusion._times(steps, "ddim")
    s = [(t + 1) / T for t in times] + [0.0]
    assert s[0] == 1
    assert np.abs(np.diff(s) + 1 / steps).max() <= 1 / T
    for i, (x, after) in enumerate(itertools.pairwise(path)):
        flow = diffusion.denoise_fn(x, torch.tensor([times[i]]))
        torch.testing.assert_close(after, x + (s[i + 1] - s[i]) * flow, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("prediction", ["velocity", "flow"])
@pytest.mark.parametrize("sampler", ["ddim", "dpm++"])
def test_fewer_steps_come_near_the_exact_flow(prediction: str, sampler: str) -> None:
    """From pure noise the probability flow ends at s x_T, for images of standard deviation s."""
    errors = []
    for steps in (20, 80):
        diffusion, path = known(0.3, prediction, 20_000), list[Tensor]()
        mask = torch.zeros(1, 2, 8, 8, 8)
        draws = torch.Generator().manual_seed(3)
        reached = diffusion.sample(mask, steps, sampler, generator=draws, trajectory=path)
        errors.append(float((reached - 0.3 * path[0]).norm() / (0.3 * path[0]).norm()))
    assert errors[1] < 0.5 * errors[0]
    assert errors[1] < 0.1


@pytest.mark.parametrize("prediction", ["velocity", "flow"])
@pytest.mark.parametrize("sampler", ["ddim", "dpm++", "sde-dpm++"])
@pytest.mark.parametrize("steps", [1, 2, 3, 20, 123, 249, 250])
def test_sampling_begins_where_all_is_noise(prediction: str, sampler: str, steps: int) -> None:
    diffusion = known(0.5, prediction)
    times = diffusion._times(steps, sampler)
    assert len(times) == steps
    assert times == sorted(set(times), reverse=True)
    assert times[0] == T - 1
    assert times[-1] >= 0
    assert np.isfinite(diffusion._coefficients(times, sampler)).all()


def test_velocity_and_noise_draw_alike_where_both_are_exact() -> None:
    """The two schedules differ by their last timesteps alone, and the samplers are the same."""
    mask = torch.zeros(1, 2, 8, 8, 8)
    samples = [
        known(0.3, prediction).sample(mask, T, "ddim", generator=torch.Generator().manual_seed(1))
        for prediction in ("noise", "velocity")
    ]
    torch.testing.assert_close(*samples, rtol=0.02, atol=0.01)


def test_a_flow_is_sampled_by_ddim_unless_told_otherwise() -> None:
    diffusion, mask = known(0.3, "flow"), torch.zeros(1, 2, 4, 4, 4)
    first, second = (
        diffusion.sample(mask, T, sampler, generator=torch.Generator().manual_seed(1)) for sampler in (None, "ddim")
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prediction": "image"}, "prediction: there is no 'image'; choose one of noise, velocity, flow"),
        ({"loss_kind": "huber"}, "loss_kind: there is no 'huber'; choose one of l1, l2"),
        ({"weighting": "p2"}, "weighting: there is no 'p2'; choose one of none, min-snr"),
        ({"prediction": "flow", "timesteps": 1}, "timesteps: flow cannot have 1; give 2 or more"),
    ],
)
def test_what_there_is_not_is_said(arguments: dict, message: str) -> None:
    with pytest.raises(BadArgument, match=f"^{re.escape(message)}$"):
        GaussianDiffusion(nn.Identity(), **arguments)


def test_a_flow_has_no_ancestral_sampler() -> None:
    message = (
        "sampler: the network predicts a flow, and ddpm's posterior is that of another schedule; choose one of ddim"
    )
    with pytest.raises(BadArgument, match=f"^{re.escape(message)}"):
        known(0.3, "flow").sample(torch.zeros(1, 2, 4, 4, 4), T, "ddpm")
    assert math.isclose(known(0.3, "velocity").sample(torch.zeros(1, 2, 8, 8, 8), T, "ddpm").mean(), 0, abs_tol=0.1)
