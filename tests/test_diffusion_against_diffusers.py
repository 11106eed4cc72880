"""Every step of our samplers against diffusers' schedulers, in float64, from the same betas, timesteps, ε and noise.

diffusers is set up to match where its defaults differ: it clips x_0 to [-1, 1] as the published model does, derives ε
anew from the clipped x_0 (DDIM), and goes to the clean image in the last step. Its schedule, which it keeps in float32,
is replaced. Its DPM-Solver's `step` rounds x to float32, so its two updates are called in the order of that `step`.

What cannot match:

- DDIM there always goes from t to t - T // steps, here to the next of our timesteps. The two agree for T = 251 and 26
  evenly spaced timesteps, with `num_inference_steps` one less.
- dpm++ here spaces its timesteps evenly in λ and uses each at most once, as diffusers never does: it is given ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler, DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler
from diffusers.schedulers.scheduling_ddim import rescale_zero_terminal_snr
from torch import Tensor, nn

from medddpm.diffusion import SAMPLERS, GaussianDiffusion
from medddpm.schedules import schedule

SEED = 11


class Denoiser(nn.Module):
    """An ε that depends on x, the mask and t without a pattern, and often takes x_0 beyond [-1, 1]."""

    out_channels = 1

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.sin(2 * x[:, :1] + x[:, 1:2] + 0.1 * t.view(-1, 1, 1, 1, 1)) + 0.8 * x[:, :1]


def exact(timesteps: int) -> GaussianDiffusion:
    """Its schedule in float64, which a model's state dict rounds to float32."""
    diffusion = GaussianDiffusion(Denoiser(), timesteps)
    for name, values in schedule(timesteps).items():
        diffusion.register_buffer(name, torch.tensor(values))
    return diffusion


def same_schedule(kind: type, diffusion: GaussianDiffusion, **options: Any) -> Any:
    """A scheduler of diffusers with our betas, and ᾱ in float64."""
    betas = diffusion.betas.numpy()
    scheduler = kind(num_train_timesteps=len(betas), trained_betas=betas, prediction_type="epsilon", **options)
    np.testing.assert_allclose(scheduler.alphas_cumprod, diffusion.alphas_cumprod, rtol=1e-4)
    scheduler.alphas_cumprod = diffusion.alphas_cumprod
    return scheduler


def dpm_solver(diffusion: GaussianDiffusion, times: list[int], algorithm: str) -> Any:
    """DPM-Solver++ of order 2 at our timesteps; a dynamic threshold of at least and at most 1 clips x_0 to [-1, 1]."""
    clipping = {"thresholding": True, "sample_max_value": 1.0}
    solver = same_schedule(DPMSolverMultistepScheduler, diffusion, solver_order=2, algorithm_type=algorithm, **clipping)
    solver.set_timesteps(timesteps=times)
    alphas_cumprod = diffusion.alphas_cumprod[times]
    solver.sigmas = torch.cat([((1 - alphas_cumprod) / alphas_cumprod).sqrt(), torch.zeros(1).double()])
    solver._step_index = 0

    def step(predicted: Tensor, t: int, x: Tensor, draws: torch.Generator) -> Tensor:
        noise = torch.randn(x.shape, generator=draws, dtype=x.dtype) if t > 0 and algorithm.startswith("sde") else 0 * x
        clean = solver.convert_model_output(predicted, sample=x)
        solver.model_outputs = [solver.model_outputs[1], clean]
        if solver.step_index in (0, len(times) - 1):
            after = solver.dpm_solver_first_order_update(clean, sample=x, noise=noise)
        else:
            after = solver.multistep_dpm_solver_second_order_update(solver.model_outputs, sample=x, noise=noise)
        solver._step_index += 1
        return after

    return step


def stepper(sampler: str, diffusion: GaussianDiffusion, times: list[int]) -> Any:
    """diffusers' step: (ε, t, x, generator) to x at the next timestep."""
    if sampler.endswith("dpm++"):
        return dpm_solver(diffusion, times, {"dpm++": "dpmsolver++", "sde-dpm++": "sde-dpmsolver++"}[sampler])
    if sampler == "ddim":
        ddim = same_schedule(DDIMScheduler, diffusion, timestep_spacing="linspace", clip_sample=True)
        ddim.set_timesteps(len(times))
        assert ddim.timesteps.tolist() == times
        ddim.num_inference_steps -= 1
        return lambda predicted, t, x, _: ddim.step(predicted, t, x, use_clipped_model_output=True).prev_sample
    ddpm = same_schedule(DDPMScheduler, diffusion, variance_type="fixed_small", clip_sample=True)
    ddpm.set_timesteps(len(times))
    assert ddpm.timesteps.tolist() == times
    return lambda predicted, t, x, draws: ddpm.step(predicted, t, x, generator=draws).prev_sample


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # in diffusers
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_each_step_is_that_of_diffusers(sampler: str) -> None:
    timesteps, steps = {"ddpm": (250, 250), "ddim": (251, 26)}.get(sampler, (250, 20))
    diffusion, path = exact(timesteps), []
    mask = torch.linspace(-1, 1, 2 * 8**3).double().view(1, 2, 8, 8, 8)
    diffusion.sample(mask, steps, sampler, generator=torch.Generator().manual_seed(SEED), trajectory=path)

    times, draws = diffusion._times(steps, sampler), torch.Generator().manual_seed(SEED)
    step = stepper(sampler, diffusion, times)
    x = torch.randn(path[0].shape, generator=draws, dtype=torch.float64)
    clipped = 0
    for t, expected in zip(times, path[1:], strict=True):
        predicted = diffusion.denoise_fn(torch.cat([x, mask], dim=1), torch.tensor([t]))
        alpha, sigma = diffusion.sqrt_alphas_cumprod[t], diffusion.sqrt_one_minus_alphas_cumprod[t]
        clipped += int((((x - sigma * predicted) / alpha).abs() > 1).sum())
        x = step(predicted, t, x, draws)
        assert x.dtype == expected.dtype == torch.float64
        torch.testing.assert_close(x, expected, rtol=1e-9, atol=1e-9)
    assert 0 < clipped < x.numel() * steps


def test_the_schedule_without_a_signal_at_its_end_is_that_of_diffusers() -> None:
    betas = torch.tensor(schedule(250)["betas"])
    torch.testing.assert_close(torch.tensor(schedule(250, "velocity")["betas"]), rescale_zero_terminal_snr(betas))


@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_each_step_of_a_flow_is_that_of_diffusers() -> None:
    class Small(Denoiser):
        """Stays in [-1, 1], where x_0 is not clipped, which diffusers does not do."""

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return 1.3 * x[:, :1] + 0.1 * torch.sin(3 * x[:, :1] + x[:, 1:2])

    diffusion, path = GaussianDiffusion(Small(), 250, prediction="flow"), list[Tensor]()
    mask = torch.linspace(-1, 1, 2 * 4**3).view(1, 2, 4, 4, 4)
    diffusion.sample(mask, 25, "ddim", generator=torch.Generator().manual_seed(SEED), trajectory=path)
    euler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=250)
    euler.set_timesteps(sigmas=np.linspace(1, 0, 25, endpoint=False))
    x = path[0]
    for t, expected in zip(diffusion._times(25, "ddim"), path[1:], strict=True):
        predicted = diffusion.denoise_fn(torch.cat([x, mask], dim=1), torch.tensor([t]))
        x = euler.step(predicted, euler.timesteps[euler.step_index or 0], x).prev_sample
        torch.testing.assert_close(x, expected, rtol=1e-4, atol=1e-5)
