"""HA-GAN (Sun et al. 2022, doi:10.1109/JBHI.2022.3172976): a GAN of 256³ volumes, trained on a 64³ whole and a slab.

Widths and kernels are those of its repository (batmanlab/HA-GAN, models/Model_HA_GAN_256.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, interpolate, l1_loss
from torch.nn.utils.parametrizations import spectral_norm

GROUPS = 8
LOW, SLAB = 4, 8  # the whole is a quarter as fine; the slab is an eighth of the slices


class HierarchicalGan(nn.Module):
    """Generator, discriminator and the two encoders, with the losses of one training iteration.

    Args:
        width: base width of the generator (32).
        latent: length of the latent vector (1024).
        start: side of the generator's first volume; the volume's is 64 times it (4, for 256).
    """

    def __init__(self, width: int = 32, latent: int = 1024, start: int = 4) -> None:
        super().__init__()
        self.latent = latent
        self.trunk = Trunk(width, latent, start)
        self.to_low = nn.Sequential(block(2 * width, width), block(width, width // 2), conv(width // 2, 1), nn.Tanh())
        self.to_slab = nn.Sequential(
            nn.Upsample(scale_factor=2), block(2 * width, width), nn.Upsample(scale_factor=2), conv(width, 1), nn.Tanh()
        )
        self.judge = Discriminator(width, start)
        self.slab_encoder = nn.Sequential(
            half(1, width), block(width, width), half(width, 2 * width)
        )  # slab → the trunk's features of it
        self.encoder = nn.Sequential(
            *(half(2 * width if i == 0 else width << (i - 1), width << i) for i in range(4)),
            nn.Conv3d(8 * width, latent, start),
            nn.Flatten(),
        )  # the trunk's features → latent

    def forward(self, volume: Tensor) -> Tensor:
        """Sums the losses of discriminator, generator, slab encoder and encoder, each of which trains only its part.

        Args:
            volume: (N, 1, S, S, S), S = 64 · start, in [-1, 1].
        """
        depth = volume.shape[2] // SLAB
        at = volume.shape[2] // 2  # training draws it at random; the work is the same everywhere
        real = (volume[:, :, at : at + depth], interpolate(volume, scale_factor=1 / LOW))
        place = at / (volume.shape[2] - depth)

        fake = self.generate(torch.randn(len(volume), self.latent, device=volume.device), at)
        detached = tuple(part.detach() for part in fake)
        yes, no = self.judge(*real, place), self.judge(*detached, place)
        loss = binary_cross_entropy_with_logits(yes, torch.ones_like(yes))
        loss = loss + binary_cross_entropy_with_logits(no, torch.zeros_like(no))
        with frozen(self.judge):
            fooled = self.judge(*fake, place)
            loss = loss + binary_cross_entropy_with_logits(fooled, torch.ones_like(fooled))
        with frozen(self.trunk, self.to_low, self.to_slab):
            loss = loss + l1_loss(self.to_slab(self.slab_encoder(real[0])), real[0])
            with torch.no_grad():
                features = torch.cat([self.slab_encoder(slab) for slab in volume.split(depth, dim=2)], dim=2)
            slab, low = self.generate(self.encoder(features), at)
            return loss + (l1_loss(slab, real[0]) + l1_loss(low, real[1])) / 2

    def generate(self, latent: Tensor, at: int) -> tuple[Tensor, Tensor]:
        """Makes the slab (N, 1, S/8, S, S) that begins at slice `at`, and the whole (N, 1, S/4, S/4, S/4)."""
        features = self.trunk(latent)
        first = at // LOW
        return self.to_slab(features[:, :, first : first + features.shape[2] // SLAB]), self.to_low(features)


class Trunk(nn.Module):
    """Latent (N, L) to the features (N, 2·width, 16·start, …) that slab and whole share."""

    def __init__(self, width: int, latent: int, start: int) -> None:
        super().__init__()
        self.widths = (16 * width, 16 * width, 8 * width, 4 * width, 2 * width)
        self.start = start
        self.first = nn.Linear(latent, self.widths[0] * start**3)
        layers: list[nn.Module] = [block(self.widths[0], self.widths[0])]
        for into, out in zip(self.widths[:-1], self.widths[1:], strict=True):
            layers += [nn.Upsample(scale_factor=2), block(into, out)]
        self.layers = nn.Sequential(*layers)

    def forward(self, latent: Tensor) -> Tensor:
        """Computes the features of `latent` (N, L)."""
        volume: Tensor = self.first(latent).view(-1, self.widths[0], *[self.start] * 3)
        return self.layers(volume)


class Discriminator(nn.Module):
    """One logit (N, 1) for a slab with its place and the whole; spectrally normalised."""

    def __init__(self, width: int, start: int) -> None:
        super().__init__()
        slabs: list[nn.Module] = []
        depth, into, out = 64 * start // SLAB, 1, width // 2
        side = 64 * start
        while side > 4:
            # Four taps halve a side, two once it is that short; a depth of one stays.
            taps = 4 if depth > 4 else min(depth, 2)
            step = min(depth, 2)
            slabs += [_sn(into, out, (taps, 4, 4), (step, 2, 2), (1 if taps == 4 else 0, 1, 1)), nn.LeakyReLU(0.2)]
            depth, side, into, out = depth // step, side // 2, out, 2 * out
        self.slab = nn.Sequential(
            *slabs, _sn(into, into // 4, (1, 4, 4), (1, 1, 1), (0, 0, 0)), nn.LeakyReLU(0.2), nn.Flatten()
        )
        self.head = nn.Sequential(
            spectral_norm(nn.Linear(into // 4 + 1, into // 8)),
            nn.LeakyReLU(0.2),
            spectral_norm(nn.Linear(into // 8, 1)),
        )
        wholes: list[nn.Module] = []
        for into, out in zip((1, width, 2 * width, 4 * width), (width, 2 * width, 4 * width, 8 * width), strict=True):
            wholes += [_sn(into, out, (4, 4, 4), (2, 2, 2), (1, 1, 1)), nn.LeakyReLU(0.2)]
        self.whole = nn.Sequential(*wholes, _sn(8 * width, 1, (start,) * 3, (1, 1, 1), (0, 0, 0)), nn.Flatten())

    def forward(self, slab: Tensor, low: Tensor, place: float) -> Tensor:
        """Judges `slab` (N, 1, S/8, S, S) at its `place`, 0 to 1, and `low` (N, 1, S/4, S/4, S/4)."""
        features = self.slab(slab)
        features = torch.cat([features, torch.full_like(features[:, :1], place)], dim=1)
        logit: Tensor = (self.head(features) + self.whole(low)) / 2
        return logit


def conv(into: int, out: int) -> nn.Conv3d:
    """Makes a 3³ convolution that keeps the size."""
    return nn.Conv3d(into, out, 3, padding=1)


def block(into: int, out: int) -> nn.Sequential:
    """Makes a convolution, a group norm and a ReLU, which keep the size."""
    return nn.Sequential(conv(into, out), nn.GroupNorm(GROUPS, out), nn.ReLU())


def half(into: int, out: int) -> nn.Sequential:
    """Makes a convolution to half the size, a group norm and a ReLU."""
    return nn.Sequential(nn.Conv3d(into, out, 4, stride=2, padding=1), nn.GroupNorm(GROUPS, out), nn.ReLU())


@contextlib.contextmanager
def frozen(*parts: nn.Module) -> Iterator[None]:
    """Inside, `parts` pass gradients on and gather none for their own weights."""
    for part in parts:
        part.requires_grad_(False)
    try:
        yield
    finally:
        for part in parts:
            part.requires_grad_(True)


def _sn(into: int, out: int, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...]) -> nn.Module:
    return spectral_norm(nn.Conv3d(into, out, kernel, stride, padding))  # type: ignore[arg-type]
