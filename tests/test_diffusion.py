"""Schedule, loss and samplers, against closed forms: a Gaussian image has a known best denoiser and a known flow."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from medddpm.diffusion import SAMPLERS, GaussianDiffusion
from medddpm.errors import BadArgument
from medddpm.noise import ahead
from medddpm.schedules import PREDICTIONS
from medddpm.unet import UNet3D


class GaussianDenoiser(nn.Module):
    """The exact ε for images drawn from N(0, s²), whatever the mask: E[ε | x_t] = x_t √(1−ᾱ) / (ᾱ s² + 1 − ᾱ)."""

    out_channels = 1

    def __init__(self, std: float) -> None:
        super().__init__()
        self.variance = std**2
        self.alphas_cumprod = torch.tensor([])

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        a = self.alphas_cumprod[t].view(-1, 1, 1, 1, 1)
        return x[:, :1] * (1 - a).sqrt() / (a * self.variance + 1 - a)


def gaussian(std: float, timesteps: int = 250) -> GaussianDiffusion:
    denoiser = GaussianDenoiser(std)
    diffusion = GaussianDiffusion(denoiser, timesteps)
    denoiser.alphas_cumprod = diffusion.alphas_cumprod
    return diffusion


def test_the_schedule_is_the_specified_one() -> None:
    diffusion = GaussianDiffusion(nn.Identity())
    n = 251
    bar = [math.cos((i * n / (n - 1) / n + 0.008) / 1.008 * math.pi / 2) ** 2 for i in range(n)]
    betas = [min(1 - bar[i + 1] / bar[i], 0.999) for i in range(250)]
    np.testing.assert_allclose(diffusion.betas.numpy(), betas, rtol=1e-5)
    np.testing.assert_allclose(diffusion.alphas_cumprod.numpy(), np.cumprod(1 - np.array(betas)), rtol=1e-5)
    assert diffusion.betas[-1] == pytest.approx(0.999)
    assert diffusion.posterior_log_variance_clipped[0] == pytest.approx(math.log(1e-20))


def test_the_loss_is_the_mean_absolute_error_of_the_noise() -> None:
    diffusion = gaussian(0.3)
    image, mask = torch.rand(2, 1, 4, 4, 4) * 2 - 1, torch.zeros(2, 2, 4, 4, 4)
    noise, t = torch.randn_like(image), torch.tensor([3, 200])
    a = diffusion.alphas_cumprod[t].view(-1, 1, 1, 1, 1)
    noisy = a.sqrt() * image + (1 - a).sqrt() * noise
    expected = (noise - diffusion.denoise_fn(noisy, t)).abs().mean()
    torch.testing.assert_close(diffusion.loss(image, mask, t=t, noise=noise), expected)


def test_the_loss_draws_from_its_generator_alone() -> None:
    diffusion = gaussian(0.3)
    image, mask = torch.rand(4, 1, 4, 4, 4), torch.zeros(4, 2, 4, 4, 4)

    def sample(seed: int) -> Tensor:
        return diffusion.loss(image, mask, generator=torch.Generator().manual_seed(seed))

    first = sample(1)
    torch.rand(7)
    assert torch.equal(first, sample(1))
    assert not torch.equal(first, sample(2))


def test_offset_noise_moves_each_volume_as_a_whole_and_none_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    image, mask = torch.zeros(400, 1, 4, 4, 4), torch.zeros(400, 2, 4, 4, 4)
    noises: dict[float, Tensor] = {}
    for offset in (0.0, 2.0):
        diffusion = gaussian(0.5)
        diffusion.offset_noise = offset
        inner = diffusion.add_noise

        def note(image: Tensor, t: Tensor, noise: Tensor, offset: float = offset, inner: Any = inner) -> Tensor:
            noises[offset] = noise
            return inner(image, t, noise)

        monkeypatch.setattr(diffusion, "add_noise", note)
        diffusion.loss(image, mask, generator=torch.Generator().manual_seed(0))
    plain, moved = noises[0.0], noises[2.0]
    difference = moved - plain  # the same draws beneath
    assert difference.flatten(1).std(dim=1).max() < 1e-6
    assert difference.mean(dim=(1, 2, 3, 4)).std() == pytest.approx(2, rel=0.1)
    assert plain.std() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_sample_has_the_images_distribution(sampler: str) -> None:
    """16 384 voxels of N(0, 0.2²): their standard deviation is known to half a percent.

    The published posterior variance is the one of a fixed x_0, the lower of Ho et al.'s two: it loses a little spread.
    """
    std = 0.2
    sample = gaussian(std).sample(
        torch.zeros(1, 2, 16, 32, 32), 250, sampler, generator=torch.Generator().manual_seed(0)
    )
    assert sample.shape == (1, 1, 16, 32, 32)
    assert sample.mean().abs() < 0.01
    assert sample.std() == pytest.approx(std, rel=0.06)


def flow_error(sampler: str, steps: int, std: float = 0.1, timesteps: int = 250) -> float:
    """Distance from the exact solution of the probability-flow ODE: x_0 = x_T s / √(ᾱ_T s² + 1 − ᾱ_T)."""
    diffusion = gaussian(std, timesteps)
    path: list[Tensor] = []
    mask, generator = torch.zeros(1, 2, 8, 8, 8), torch.Generator().manual_seed(3)
    reached = diffusion.sample(mask, steps, sampler, generator=generator, trajectory=path).double()
    start = diffusion.alphas_cumprod[-1].double()
    exact = path[0].double() * std / (start * std**2 + 1 - start).sqrt()
    return float((reached - exact).norm() / exact.norm())


@pytest.mark.parametrize(("sampler", "order"), [("ddim", 1), ("dpm++", 2)])
def test_fewer_steps_converge_at_the_solvers_order(sampler: str, order: int) -> None:
    """On a schedule fine enough that whole timesteps do not blur the picture."""
    coarse, fine = (flow_error(sampler, steps, timesteps=20_000) for steps in (40, 80))
    assert math.log2(coarse / fine) == pytest.approx(order, abs=0.4)


@pytest.mark.parametrize("steps", [10, 25, 50])
def test_the_second_order_solver_is_the_better_one_on_the_models_schedule(steps: int) -> None:
    assert flow_error("dpm++", steps) < 0.5 * flow_error("ddim", steps)


@pytest.mark.parametrize("sampler", ["dpm++", "sde-dpm++"])
def test_fewer_steps_keep_the_images_spread(sampler: str) -> None:
    std, mask = 0.2, torch.zeros(1, 2, 16, 32, 32)
    sample = gaussian(std).sample(mask, 20, sampler, generator=torch.Generator().manual_seed(0))
    assert sample.std() == pytest.approx(std, rel=0.1)


def test_a_networks_error_is_drawn_over_by_fresh_noise_and_kept_without() -> None:
    """A network that sees a tenth too little noise everywhere leaves noise in what a solver of the ODE draws."""
    left = {}
    for sampler in ("dpm++", "sde-dpm++"):
        diffusion = gaussian(0.01)
        exact = diffusion.denoise_fn.forward
        diffusion.denoise_fn.forward = lambda x, t, exact=exact: 0.9 * exact(x, t)
        mask = torch.zeros(1, 2, 16, 16, 16)
        sample = diffusion.sample(mask, 20, sampler, generator=torch.Generator().manual_seed(0))
        left[sampler] = float(sample.std())
    assert left["sde-dpm++"] < 0.7 * left["dpm++"]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_sample_repeats_from_its_seed_and_stays_in_range(sampler: str) -> None:
    diffusion = gaussian(5.0)  # far wider than the clamp
    mask = torch.zeros(2, 2, 4, 4, 4)
    a, b = (diffusion.sample(mask, 250, sampler, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(a, b)
    assert a.abs().max() <= 1
    assert not torch.equal(a[0], a[1])


@pytest.mark.parametrize("sampler", ["ddim", "dpm++", "sde-dpm++"])
@pytest.mark.parametrize("steps", [1, 2, 10, 123, 249, 250])
def test_each_timestep_is_visited_at_most_once(sampler: str, steps: int) -> None:
    times = gaussian(0.5)._times(steps, sampler)
    assert len(times) == steps
    assert times == sorted(set(times), reverse=True)
    assert times[0] == 249
    assert times[-1] == 0 or steps == 1


@pytest.mark.parametrize("sampler", ["ddim", "dpm++", "sde-dpm++"])
@pytest.mark.parametrize("steps", [1, 2, 10])
def test_a_trajectory_runs_from_the_noise_to_the_sample(sampler: str, steps: int) -> None:
    path: list[Tensor] = []
    sample = gaussian(0.5).sample(torch.zeros(1, 2, 4, 4, 4), steps, sampler, trajectory=path)
    assert len(path) == steps + 1
    assert torch.equal(path[-1], sample)
    assert torch.isfinite(sample).all()


@pytest.mark.parametrize(
    ("steps", "sampler", "message"),
    [
        (50, "ddpm", "steps: ddpm takes all 250 steps, not 50; for fewer choose another sampler"),
        (0, "ddim", "steps: ddim cannot take 0; choose 1 to 250"),
        (251, "dpm++", "steps: dpm++ cannot take 251; choose 1 to 250"),
        (10, "euler", "sampler: there is no 'euler'; choose one of ddpm, ddim, dpm++, sde-dpm++"),
    ],
)
def test_what_cannot_be_sampled_is_said_of_the_argument(steps: int, sampler: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        gaussian(0.5).sample(torch.zeros(1, 2, 4, 4, 4), steps, sampler)


@pytest.mark.parametrize(
    ("image", "mask", "message"),
    [
        (None, (1, 1, 8, 8, 8), "mask: it is (1, 1, 8, 8, 8); this network takes (N, 2, D, H, W) with D, H and W mult"),
        (None, (1, 2, 8, 8, 9), "mask: it is (1, 2, 8, 8, 9); this network takes (N, 2, D, H, W) with D, H and W mult"),
        (None, (2, 8, 8, 8), "mask: it is (2, 8, 8, 8); this network takes (N, 2, D, H, W) with"),
        ((1, 2, 8, 8, 8), (1, 2, 8, 8, 8), "image: it is (1, 2, 8, 8, 8); this network takes (N, 1, D, H, W) with"),
        ((1, 1, 8, 8, 8), (1, 3, 8, 8, 8), "mask: it is (1, 3, 8, 8, 8); this network takes (N, 2, D, H, W) with"),
        ((2, 1, 8, 8, 8), (1, 2, 8, 8, 8), "mask: it is (1, 2, 8, 8, 8), and the image (2, 1, 8, 8, 8); give both"),
    ],
)
def test_a_shape_is_refused_as_it_was_given(image: tuple | None, mask: tuple, message: str) -> None:
    """Not as the network sees it, with the noisy image's channel and the mask's together."""
    diffusion = GaussianDiffusion(UNet3D(8, model_channels=32, channel_mult=(1, 1)), 3)
    call = diffusion.sample if image is None else diffusion.loss
    inputs = [torch.zeros(shape) for shape in (image, mask) if shape is not None]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        call(*inputs)


class Other(nn.Module):
    """Another network than `UNet3D`, of so many output channels."""

    def __init__(self, channels: int, kind: type = Tensor) -> None:
        super().__init__()
        self.out_channels, self.kind = 1, kind
        self.conv = nn.Conv3d(3, channels, 1)

    def forward(self, x: Tensor, t: Tensor) -> Any:
        y = self.conv(x)
        return y if self.kind is Tensor else self.kind([y])


IMAGE, MASK = torch.zeros(2, 1, 4, 4, 4), torch.zeros(2, 2, 4, 4, 4)


@pytest.mark.parametrize(
    ("image", "mask", "message"),
    [
        (IMAGE[0], MASK[0], "image: it is (1, 4, 4, 4); give (N, channels, D, H, W)"),
        (IMAGE, MASK[:1], "mask: it is (1, 2, 4, 4, 4), and the image (2, 1, 4, 4, 4); give both with the same N"),
        (IMAGE, MASK[..., :3], "mask: it is (2, 2, 4, 4, 3), and the image (2, 1, 4, 4, 4); give both with the same"),
        (IMAGE.byte(), MASK, "image: its dtype is torch.uint8; give floating-point numbers: image.float()"),
        (IMAGE, MASK.bool(), "mask: its dtype is torch.bool; give floating-point numbers: mask.float()"),
        (None, MASK.long(), "mask: its dtype is torch.int64; give floating-point numbers: mask.float()"),
        (None, MASK[0], "mask: it is (2, 4, 4, 4); give (N, channels, D, H, W)"),
    ],
)
@pytest.mark.parametrize("ours", [False, True], ids=["another network", "UNet3D"])
def test_what_no_network_takes_is_refused_as_it_was_given(ours: bool, image: Any, mask: Tensor, message: str) -> None:
    network = UNet3D(8, model_channels=32, channel_mult=(1,)) if ours else Other(1)
    diffusion = GaussianDiffusion(network, 3)
    if ours:
        message = message.replace("give (N, channels, D, H, W)", "this network takes (N, ")
    with pytest.raises(BadArgument, match=f"^{re.escape(message)}"):
        diffusion.sample(mask) if image is None else diffusion.loss(image, mask)


@pytest.mark.parametrize(
    ("network", "returned"), [(Other(2), "(2, 2, 4, 4, 4)"), (Other(1, tuple), "a tuple"), (Other(1, list), "a list")]
)
def test_a_prediction_of_another_shape_is_not_broadcast(network: nn.Module, returned: str) -> None:
    diffusion = GaussianDiffusion(network, 3)
    message = re.escape(f"denoise_fn: Other returns {returned} for an image (2, 1, 4, 4, 4); give a network that")
    with pytest.raises(BadArgument, match=message):
        diffusion.loss(IMAGE, MASK)
    with pytest.raises(BadArgument, match=message):
        diffusion.sample(MASK)


def test_a_network_says_how_many_channels_an_image_has() -> None:
    network = Other(1)
    del network.out_channels
    with pytest.raises(BadArgument, match="denoise_fn: Other has no attribute out_channels; set it to the number of"):
        GaussianDiffusion(network, 3).sample(MASK)


@pytest.mark.parametrize(
    ("generator", "message"),
    [
        (3, r"generator: it is of type int; give torch.Generator\(\).manual_seed"),
        ([1, 2], r"generator: it is of type int; give torch.Generator\(\).manual_seed"),
        ([torch.Generator()], "generator: there are 1 for 2 volumes; give one for each, or one for all"),
        ([], "generator: there are 0 for 2 volumes; give one for each, or one for all"),
    ],
)
def test_what_is_no_generator_is_refused(generator: Any, message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        GaussianDiffusion(Other(1), 3).sample(MASK, generator=generator)


def test_the_mask_reaches_the_network() -> None:
    class Echo(nn.Module):
        out_channels = 1

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return 3 * x[:, 1:2] + 0 * x[:, :1]

    diffusion = GaussianDiffusion(Echo())
    mask = torch.stack([torch.full((2, 4, 4, 4), -1.0), torch.full((2, 4, 4, 4), 1.0)])
    low, high = diffusion.sample(mask, 10, "ddim", generator=torch.Generator().manual_seed(0))
    assert low.mean() > high.mean()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_step_is_the_papers_equation(sampler: str) -> None:
    """Each step of a trajectory from its own x_t and x_0, as the papers write it, in float64.

    The posterior's mean and variance of Ho et al. equations 6 and 7; Song et al. equation 12 with σ = 0; Lu et al. 2022
    algorithm 2, the multistep solver in D, and its stochastic sibling.
    """
    diffusion, path = gaussian(0.4), []
    steps = 250 if sampler == "ddpm" else 9
    mask = torch.zeros(1, 2, 4, 4, 4)
    diffusion.sample(mask, steps, sampler, generator=torch.Generator().manual_seed(7), trajectory=path)
    draws = torch.Generator().manual_seed(7)
    torch.randn(path[0].shape, generator=draws)
    times = diffusion._times(steps, sampler)
    bar = [*diffusion.alphas_cumprod.double().tolist(), 1.0]
    earlier: tuple[Tensor, float] | None = None
    for x, after, t, s in zip(path, path[1:], times, [*times[1:], -1], strict=False):
        x, a, b = x.double(), bar[t], bar[s]
        noise = diffusion.denoise_fn(x.float(), torch.tensor([t])).double()
        clean = ((x - math.sqrt(1 - a) * noise) / math.sqrt(a)).clamp(-1, 1)
        if sampler == "ddpm":
            beta = 1 - a / b
            expected = (math.sqrt(b) * beta * clean + math.sqrt(1 - beta) * (1 - b) * x) / (1 - a)
            if s >= 0:
                fresh = torch.randn(x.shape, generator=draws).double()
                expected += math.sqrt(beta * (1 - b) / (1 - a)) * fresh
        elif sampler == "ddim":
            noise_in_x = (x - math.sqrt(a) * clean) / math.sqrt(1 - a)
            expected = math.sqrt(b) * clean + math.sqrt(1 - b) * noise_in_x
        elif s < 0:
            expected = clean
        else:
            lambdas = [0.5 * math.log(each / (1 - each)) for each in (a, b)]
            h = lambdas[1] - lambdas[0]
            d = clean
            if earlier is not None:
                ratio = earlier[1] / h
                d = (1 + 1 / (2 * ratio)) * clean - 1 / (2 * ratio) * earlier[0]
            expected = math.sqrt((1 - b) / (1 - a)) * x - math.sqrt(b) * (math.exp(-h) - 1) * d
            if sampler == "sde-dpm++":
                expected = math.sqrt((1 - b) / (1 - a)) * math.exp(-h) * x + math.sqrt(b) * (1 - math.exp(-2 * h)) * d
                fresh = torch.randn(x.shape, generator=draws).double()
                expected += math.sqrt(1 - b) * math.sqrt(1 - math.exp(-2 * h)) * fresh
            earlier = clean, h
        torch.testing.assert_close(after.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_volume_with_a_generator_of_its_own_is_the_same_in_any_batch(sampler: str) -> None:
    diffusion = gaussian(0.3, timesteps=20)
    masks = torch.zeros(3, 2, 4, 4, 4)

    def sample(*seeds: int) -> Tensor:
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        return diffusion.sample(masks[: len(seeds)], 20, sampler, generator=generators)

    together = sample(3, 4, 5)
    assert torch.equal(together, torch.cat([sample(3), sample(4, 5)]))
    assert torch.equal(
        together[1:2], diffusion.sample(masks[:1], 20, sampler, generator=torch.Generator().manual_seed(4))
    )
    with pytest.raises(BadArgument, match="generator: there are 2 for 3 volumes"):
        diffusion.sample(masks, 20, sampler, generator=[torch.Generator()] * 2)


def test_what_is_drawn_ahead_comes_in_order_and_no_more_of_it() -> None:
    made: list[int] = []

    def items():
        for number in range(4):
            made.append(number)
            yield torch.tensor(number)

    coming = ahead(items())
    assert next(coming) == 0
    assert [int(item) for item in coming] == [1, 2, 3]
    assert made == [0, 1, 2, 3]
    assert list(ahead(iter([]))) == []


class Truth(nn.Module):
    """Predicts what there is to predict, whatever it is given."""

    out_channels = 1

    def forward(self, _x: Tensor, _t: Tensor) -> Tensor:
        return self.target


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("ratio", [0.05, 1.0, 20.0])
def test_the_clean_image_follows_from_every_prediction(prediction: str, ratio: float) -> None:
    truth = Truth()
    diffusion = GaussianDiffusion(truth, prediction=prediction)
    image, mask = torch.rand(2, 1, 4, 4, 4) * 2 - 1, torch.zeros(2, 2, 4, 4, 4)
    noise, t = torch.randn_like(image), torch.full((2,), diffusion.timestep_at(ratio))
    x = diffusion.add_noise(image, t, noise)
    truth.target = diffusion._target(image, t, noise)
    torch.testing.assert_close(diffusion.clean(x, mask, t), image, rtol=0, atol=2e-5)
    truth.target = truth.target + 1e3
    assert diffusion.clean(x, mask, t).abs().max() == 1


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_a_noise_to_signal_ratio_has_the_nearest_timestep(prediction: str) -> None:
    diffusion = GaussianDiffusion(nn.Identity(), prediction=prediction)
    t = torch.arange(249)  # the last may have no signal
    one = torch.ones(249, 1, 1, 1, 1)
    alpha = diffusion.add_noise(one, t, 0 * one).flatten()
    sigma = diffusion.add_noise(0 * one, t, one).flatten()
    for ratio in (0.05, 1.0, 5.0, 20.0):
        distances = (sigma / alpha / ratio).log().abs()
        assert diffusion.timestep_at(ratio) == int(distances.argmin())
        assert distances.min() < 0.1
    assert diffusion.timestep_at(1e9) >= 248
