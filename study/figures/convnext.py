"""The colours and the names of the versions of chapter 18's operators."""

from __future__ import annotations

from study.figures.style import VERSION_COLOURS

BY_LIBRARY = ("PyTorch", "cuDNN", "torch.compile")
SHORT = {"layer_norm": "norm", "conv2d": "conv"}  # operators in a picture
NAMED = {  # the versions that a roofline names, eight in all: the report's, the best by hand, and the libraries'
    "conv2d": ("direct", "tiled, 4 outputs, async", "cuDNN BF16, channels-last"),
    "layer_norm": ("a warp a row", "PyTorch"),
    "block": ("unfused", "fused", "Triton"),
}


def colour_of(version: str) -> str:
    """Returns the colour of a version: the libraries', Triton's, or ours."""
    kind = "library" if version.startswith(BY_LIBRARY) else "Triton" if version == "Triton" else "by hand"
    return VERSION_COLOURS[kind]
