"""The trained models shipped with the package: NAME.safetensors, NAME.csv (its training) and NAME.md (its card)."""

from __future__ import annotations

import hashlib
from pathlib import Path

from medddpm.errors import BadInput

DEFAULT = "heads-64"
"""The model that `medddpm sample` uses without a checkpoint."""

SHA256 = {DEFAULT: "7b26f1f8811f2b9ac0d3eafb04c7bc5fbde53578d9fb5879821bf7bcf158872a"}
"""The checksum of each model's file, as `sha256sum` prints it."""

LARGEST = 15 * 2**20
"""The largest model file in bytes, so that installing the package stays quick."""

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Returns the names of the models."""
    return sorted(path.stem for path in _FOLDER.glob("*.safetensors"))


def weights(name: str = DEFAULT) -> Path:
    """Returns a model's file, for `load_checkpoint` and `sample_to_files`; its checksum is verified.

    Raises:
        BadInput: there is none of that name, or it is damaged.
    """
    path = _file(name, ".safetensors")
    with open(path, "rb") as stream:
        checksum = hashlib.file_digest(stream, "sha256").hexdigest()
    if checksum != SHA256.get(name):
        raise BadInput(path, "it is not the file that came with the package", "install the package again")
    return path


def record(name: str = DEFAULT) -> Path:
    """Returns a model's training record: a CSV of `step` and `loss`, the mean over the steps since the row before.

    Raises:
        BadInput: there is none of that name.
    """
    return _file(name, ".csv")


def card(name: str = DEFAULT) -> Path:
    """Returns a model's card, in Markdown.

    Raises:
        BadInput: there is none of that name.
    """
    return _file(name, ".md")


def _file(name: str, suffix: str) -> Path:
    path = _FOLDER / (name + suffix)
    if not path.is_file():
        known = ", ".join(names()) or "none"
        raise BadInput(
            path, "no such model is shipped with this package", f"give a checkpoint; the package has: {known}"
        )
    return path
