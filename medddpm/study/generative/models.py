"""The generative models of Figure 2 at their published configurations, with what their training is said to have cost.

Nothing is downloaded: a configuration is what the model's own repository states, weights are random. Networks are those
of `diffusers`, and where it has none, ours. Where numbers come from stands beside each of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from medddpm.errors import BadInput

NOT_FOUND = "none published that could be found"


@dataclass(frozen=True)
class Cost:
    """What one training is published to have taken.

    Args:
        gpu_hours: hours times GPUs; None where no such number was found.
        hardware: the GPU they were counted on; empty without a number.
        source: who states it and where, or why there is none.
    """

    gpu_hours: float | None
    hardware: str
    source: str


@dataclass(frozen=True)
class Random:
    """One tensor input, drawn at random.

    Args:
        shape: with the batch of 1 first.
        below: draw integers from 0 to this, exclusive (timesteps, class labels); None draws standard normals.
    """

    shape: tuple[int, ...]
    below: int | None = None

    def draw(self, device: torch.device) -> Tensor:
        """A new tensor, float32 or int64."""
        if self.below is not None:
            return torch.randint(self.below, self.shape, device=device)
        return torch.randn(self.shape, device=device)


Inputs = Mapping[str, Any]  # by argument: Random, or again a mapping of them


@dataclass(frozen=True)
class Model:
    """A model of Figure 2.

    Args:
        name: as the command line has it.
        title: as the figure has it.
        kind: "latent diffusion", "diffusion" or "GAN".
        network: module:class of the network.
        config: its arguments, as published.
        inputs: what its forward pass is given, at the resolution it was trained at, batch 1.
        resolution: of the image or volume, in pixels or voxels.
        source: where the configuration is published.
        parameters: the number published, and, if it is rounded there, by how much it may be off; None where none is.
        cost: of its training.
        tiny: arguments and inputs of a toy of the same make, for tests.
    """

    name: str
    title: str
    kind: str
    network: str
    config: Mapping[str, Any]
    inputs: Inputs
    resolution: str
    source: str
    parameters: tuple[float, float] | None
    cost: Cost
    tiny: tuple[Mapping[str, Any], Inputs] = field(repr=False)

    def build(self, device: torch.device | str, tiny: bool = False) -> nn.Module:
        """The network with random weights, made on `device` ("meta": without memory), in training mode.

        Raises:
            BadInput: diffusers is not installed, or has the class no longer.
        """
        module, _, name = self.network.partition(":")
        try:
            make = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise BadInput(
                self.name, f"{module} has no {name} here ({error})", "install the version of requirements.lock"
            ) from None
        config = {**self.config, **self.tiny[0]} if tiny else self.config
        with torch.device(device):
            network: nn.Module = make(**config)
        return network.train()

    def draw(self, device: torch.device, tiny: bool = False) -> dict[str, Any]:
        """The inputs of one step."""
        return _drawn({**self.inputs, **self.tiny[1]} if tiny else self.inputs, device)


def _drawn(inputs: Inputs, device: torch.device) -> dict[str, Any]:
    return {k: v.draw(device) if isinstance(v, Random) else _drawn(v, device) for k, v in inputs.items()}


def loss_of(output: Any) -> Tensor:
    """A scalar to train by: the network's own (a GAN's), else the squared error against fresh noise.

    Args:
        output: a tensor, or diffusers' output with the prediction in `sample`.
    """
    prediction: Tensor = output if isinstance(output, Tensor) else output.sample
    return prediction if prediction.dim() == 0 else nn.functional.mse_loss(prediction, torch.randn_like(prediction))


def parse_names(text: str) -> list[str]:
    """Model names from a comma-separated list; "all" is every one.

    Raises:
        BadInput: a name is unknown, or there is none.
    """
    names = list(MODELS) if text == "all" else [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in MODELS]:
        raise BadInput("--models", f"unknown: {', '.join(unknown)}", f"choose from {', '.join(MODELS)} or all")
    if not names:
        raise BadInput("--models", "names none", f"choose from {', '.join(MODELS)} or all")
    return names


def _latents(channels: int, side: int) -> Random:
    return Random((1, channels, side, side))


_TIME = Random((1,), below=1000)

_SD = {
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": (320, 640, 1280, 1280),
    "down_block_types": (*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"),
    "up_block_types": ("UpBlock2D", *["CrossAttnUpBlock2D"] * 3),
    "layers_per_block": 2,
    "norm_num_groups": 32,
}
_TINY_UNET = {"sample_size": 16, "block_out_channels": (32, 32, 64, 64), "cross_attention_dim": 32}
_TEXT = "encoder_hidden_states"
_DIT = {
    "num_attention_heads": 16,
    "attention_head_dim": 72,
    "in_channels": 4,
    "out_channels": 8,
    "num_layers": 28,
    "attention_bias": True,
    "patch_size": 2,
    "activation_fn": "gelu-approximate",
    "num_embeds_ada_norm": 1000,
    "norm_elementwise_affine": False,
}

_ALL = (
    Model(
        name="sd15",
        title="Stable Diffusion 1.5",
        kind="latent diffusion",
        network="diffusers:UNet2DConditionModel",
        config={**_SD, "sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8},
        inputs={"sample": _latents(4, 64), "timestep": _TIME, _TEXT: Random((1, 77, 768))},
        resolution="512×512",
        source="runwayml/stable-diffusion-v1-5, unet/config.json",
        parameters=(859.5e6, 0.05e6),
        cost=Cost(
            150_000,
            "A100",
            "Hours used, Stable Diffusion v1 model card, CompVis/stable-diffusion, Stable_Diffusion_v1_Model_Card.md; "
            "the same as 6,250 A100 days for SDv1.5 in PixArt-alpha/PixArt-alpha, README.md",
        ),
        tiny=(_TINY_UNET, {"sample": _latents(4, 16), _TEXT: Random((1, 7, 32))}),
    ),
    Model(
        name="sd21",
        title="Stable Diffusion 2.1",
        kind="latent diffusion",
        network="diffusers:UNet2DConditionModel",
        config={
            **_SD,
            "sample_size": 96,
            "cross_attention_dim": 1024,
            "attention_head_dim": (5, 10, 20, 20),
            "use_linear_projection": True,
            "upcast_attention": True,
        },
        inputs={"sample": _latents(4, 96), "timestep": _TIME, _TEXT: Random((1, 77, 1024))},
        resolution="768×768",
        source="stabilityai/stable-diffusion-2-1, unet/config.json",
        parameters=(865.9e6, 0.05e6),
        cost=Cost(
            200_000, "A100", "Hours used, Stable Diffusion v2 model card, Stability-AI/stablediffusion, modelcard.md"
        ),
        tiny=(
            {**_TINY_UNET, "attention_head_dim": (2, 2, 4, 4)},
            {"sample": _latents(4, 16), _TEXT: Random((1, 7, 32))},
        ),
    ),
    Model(
        name="sdxl",
        title="SDXL",
        kind="latent diffusion",
        network="diffusers:UNet2DConditionModel",
        config={
            **_SD,
            "sample_size": 128,
            "block_out_channels": (320, 640, 1280),
            "down_block_types": ("DownBlock2D", *["CrossAttnDownBlock2D"] * 2),
            "up_block_types": (*["CrossAttnUpBlock2D"] * 2, "UpBlock2D"),
            "transformer_layers_per_block": (1, 2, 10),
            "attention_head_dim": (5, 10, 20),
            "cross_attention_dim": 2048,
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2816,
        },
        inputs={
            "sample": _latents(4, 128),
            "timestep": _TIME,
            _TEXT: Random((1, 77, 2048)),
            "added_cond_kwargs": {"text_embeds": Random((1, 1280)), "time_ids": Random((1, 6))},
        },
        resolution="1024×1024",
        source="stabilityai/stable-diffusion-xl-base-1.0, unet/config.json",
        parameters=(2567e6, 0.5e6),
        cost=Cost(None, "", NOT_FOUND),
        tiny=(
            {
                **_TINY_UNET,
                "block_out_channels": (32, 32, 64),
                "transformer_layers_per_block": (1, 1, 2),
                "attention_head_dim": (2, 2, 4),
                "addition_time_embed_dim": 8,
                "projection_class_embeddings_input_dim": 64,
            },
            {
                "sample": _latents(4, 16),
                _TEXT: Random((1, 7, 32)),
                "added_cond_kwargs": {"text_embeds": Random((1, 16)), "time_ids": Random((1, 6))},
            },
        ),
    ),
    Model(
        name="dit",
        title="DiT-XL/2",
        kind="latent diffusion",
        network="diffusers:DiTTransformer2DModel",
        config={**_DIT, "sample_size": 32, "norm_type": "ada_norm_zero", "norm_eps": 1e-5},
        inputs={
            "hidden_states": _latents(4, 32),
            "timestep": _TIME,
            "class_labels": Random((1,), below=1000),
        },
        resolution="256×256",
        source="facebook/DiT-XL-2-256, transformer/config.json",
        # diffusers gives each of the 28 blocks the timestep's and the class's embedding, 2,777,472 weights, which the
        # published network has once (675M; Peebles & Xie 2023, arXiv:2212.09748, Table 4).
        parameters=(675e6 + 27 * 2_777_472, 0.5e6),
        cost=Cost(
            None,
            "",
            "no GPU time is published: 7M steps at 5.7 a second on a TPU v3-256 pod, some 341 hours (arXiv:2212.09748, "
            "Section 4)",
        ),
        tiny=(
            {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "sample_size": 8},
            {"hidden_states": _latents(4, 8)},
        ),
    ),
    Model(
        name="pixart",
        title="PixArt-α",
        kind="latent diffusion",
        network="diffusers:PixArtTransformer2DModel",
        config={
            **_DIT,
            "sample_size": 128,
            "norm_type": "ada_norm_single",
            "norm_eps": 1e-6,
            "cross_attention_dim": 1152,
            "caption_channels": 4096,
        },
        inputs={
            "hidden_states": _latents(4, 128),
            "timestep": _TIME,
            _TEXT: Random((1, 120, 4096)),
            "added_cond_kwargs": {"resolution": Random((1, 2)), "aspect_ratio": Random((1, 1))},
        },
        resolution="1024×1024",
        source="PixArt-alpha/PixArt-XL-2-1024-MS, transformer/config.json",
        parameters=(0.6e9, 0.05e9),
        cost=Cost(
            675 * 24,
            "A100",
            "675 A100 days, the abstract of Chen et al. 2024 (ICLR, arXiv:2310.00426) and PixArt-alpha/PixArt-alpha, "
            "README.md; a later 753 days was not verified here",
        ),
        tiny=(
            # At 128 the network takes resolution and aspect ratio as well.
            {
                "num_attention_heads": 2,
                "attention_head_dim": 12,
                "num_layers": 2,
                "cross_attention_dim": 24,
                "caption_channels": 16,
                "patch_size": 16,
            },
            {_TEXT: Random((1, 7, 16))},
        ),
    ),
    Model(
        name="wuerstchen-prior",
        title="Würstchen prior",
        kind="latent diffusion",
        network="diffusers.pipelines.deprecated.wuerstchen.modeling_wuerstchen_prior:WuerstchenPrior",
        config={"c": 1536, "c_cond": 1280, "c_in": 16, "c_r": 64, "depth": 32, "dropout": 0.1, "nhead": 24},
        inputs={"x": _latents(16, 24), "r": Random((1,)), "c": Random((1, 77, 1280))},
        resolution="1024×1024",
        source="warp-ai/wuerstchen-prior, prior/config.json",
        parameters=(3.97e9 / 4, 0.02e9),  # float32 weights of 3.97 GB, warp-ai/wuerstchen-prior-model-finetuned
        cost=Cost(
            24_602,
            "A100",
            "the abstract of Pernias et al. 2024 (ICLR, arXiv:2306.00637), for the approach and not by stage; "
            "huggingface/blog, wuerstchen.md, for version 2",
        ),
        tiny=(
            {"c": 32, "c_cond": 16, "depth": 2, "nhead": 2},
            {"x": _latents(16, 4), "c": Random((1, 7, 16))},
        ),
    ),
    Model(
        name="wuerstchen-decoder",
        title="Würstchen decoder",
        kind="latent diffusion",
        network="diffusers.pipelines.deprecated.wuerstchen.modeling_wuerstchen_diffnext:WuerstchenDiffNeXt",
        config={
            "c_in": 4,
            "c_out": 4,
            "c_r": 64,
            "patch_size": 2,
            "c_cond": 1024,
            "c_hidden": [320, 640, 1280, 1280],
            "nhead": [-1, 10, 20, 20],
            "blocks": [4, 4, 14, 4],
            "level_config": ["CT", "CTA", "CTA", "CTA"],
            "inject_effnet": [False, True, True, True],
            "effnet_embd": 16,
            "clip_embd": 1024,
            "kernel_size": 3,
            "dropout": 0.1,
        },
        inputs={"x": _latents(4, 256), "r": Random((1,)), "effnet": _latents(16, 24), "clip": Random((1, 77, 1024))},
        resolution="1024×1024",
        source="warp-ai/wuerstchen, decoder/config.json",
        parameters=(4.22e9 / 4, 0.02e9),  # float32 weights of 4.22 GB, warp-ai/wuerstchen, decoder
        cost=Cost(None, "", "none published for this stage alone that could be found; see the prior's"),
        tiny=(
            {
                "c_cond": 16,
                "c_hidden": [16, 16, 32, 32],
                "nhead": [-1, 2, 2, 2],
                "blocks": [1, 1, 1, 1],
                "clip_embd": 16,
            },
            {"x": _latents(4, 32), "effnet": _latents(16, 4), "clip": Random((1, 7, 16))},
        ),
    ),
    Model(
        name="sd3",
        title="SD3-medium",
        kind="latent diffusion",
        network="diffusers:SD3Transformer2DModel",
        config={
            "sample_size": 128,
            "patch_size": 2,
            "in_channels": 16,
            "out_channels": 16,
            "num_layers": 24,
            "attention_head_dim": 64,
            "num_attention_heads": 24,
            "joint_attention_dim": 4096,
            "caption_projection_dim": 1536,
            "pooled_projection_dim": 2048,
            "pos_embed_max_size": 192,
        },
        inputs={
            "hidden_states": _latents(16, 128),
            "timestep": _TIME,
            _TEXT: Random((1, 154, 4096)),  # 77 tokens of CLIP, 77 of T5
            "pooled_projections": Random((1, 2048)),
        },
        resolution="1024×1024",
        source="stabilityai/stable-diffusion-3-medium-diffusers, transformer/config.json",
        parameters=(2028e6, 0.5e6),
        cost=Cost(None, "", NOT_FOUND),
        tiny=(
            {
                "sample_size": 16,
                "num_layers": 2,
                "attention_head_dim": 8,
                "num_attention_heads": 2,
                "joint_attention_dim": 16,
                "caption_projection_dim": 16,
                "pooled_projection_dim": 8,
                "pos_embed_max_size": 16,
            },
            {"hidden_states": _latents(16, 16), _TEXT: Random((1, 7, 16)), "pooled_projections": Random((1, 8))},
        ),
    ),
    Model(
        name="ha-gan",
        title="HA-GAN (3-D)",
        kind="GAN",
        network="medddpm.study.generative.ha_gan:HierarchicalGan",
        config={"width": 32, "latent": 1024, "start": 4},
        inputs={"volume": Random((1, 1, 256, 256, 256))},
        resolution="256×256×256",
        source="Sun et al. 2022, doi:10.1109/JBHI.2022.3172976; batmanlab/HA-GAN, models/Model_HA_GAN_256.py",
        parameters=None,
        cost=Cost(44, "V100", "22 hours on two V100, batmanlab/HA-GAN, README.md"),
        tiny=({"width": 16, "latent": 16, "start": 1}, {"volume": Random((1, 1, 64, 64, 64))}),
    ),
    Model(
        name="med-ddpm",
        title="Med-DDPM (3-D)",
        kind="diffusion",
        network="medddpm.unet:UNet3D",
        config={"image_size": 128, "in_channels": 3, "out_channels": 1, "model_channels": 64, "num_res_blocks": 1},
        inputs={"x": Random((1, 3, 128, 128, 128)), "t": Random((1,), below=250)},
        resolution="128×128×128",
        source="Dorjsembe et al. 2024, doi:10.1109/JBHI.2024.3385504; mobaidoctor/med-ddpm",
        parameters=(40_226_433, 0),
        cost=Cost(None, "", "none in mobaidoctor/med-ddpm, README.md; the paper's text could not be searched here"),
        tiny=({"image_size": 8, "model_channels": 32}, {"x": Random((1, 3, 8, 8, 8))}),
    ),
)

MODELS: Mapping[str, Model] = MappingProxyType({model.name: model for model in _ALL})
"""Every model by its name, in the order of the figure's table."""
