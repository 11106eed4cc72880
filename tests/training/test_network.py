"""A network that no machine can hold, or no volume passes through, is refused in a line before it takes memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from medddpm.data.phantom import Phantom
from medddpm.errors import BadInput
from medddpm.training.config import TrainConfig
from medddpm.training.network import unet_for


@pytest.mark.parametrize(
    ("widths", "problem"),
    [
        ((999_999_999,), "--channel-mult: a weight has more bytes than can be counted; choose smaller numbers"),
        ((1, 100_000), "are free here; choose a smaller --size, --channels, --channel-mult or --batch-size"),
        ((1,) * 3000, "--channel-mult: no volume can be halved for 3000 levels; give at most 11"),
        ((1, 1, 1, 1, 1), "--size: 8×8×8 cannot be halved often enough; choose multiples of 16"),
    ],
)
def test_absurd_widths_are_refused(widths: Sequence[int], problem: str) -> None:
    with pytest.raises(BadInput) as refused:
        unet_for(TrainConfig(image_size=8, channel_mult=widths), Phantom(1, (8, 8, 8)))
    assert problem in str(refused.value)
