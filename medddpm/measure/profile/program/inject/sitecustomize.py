"""Prepares a program under `medddpm profile -- python …`: Python imports this file at its start by PYTHONPATH.

Nothing happens until the program has imported torch; then `medddpm.measure.profile.program.hooked` is loaded. A
sitecustomize of the environment is run as it would be without this one. Programs in an environment without medddpm get
the modules of the one that profiles.
"""

import importlib.abc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent


class AfterTorch(importlib.abc.MetaPathFinder):
    """Installs the hooks when torch has been imported."""

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> "ModuleSpec | None":
        """Finds torch as the others would, with a loader that installs the hooks at its end."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader = spec.loader if spec else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                install()

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class Package(importlib.abc.MetaPathFinder):
    """Finds medddpm where this file lies, if the program's environment has none."""

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> "ModuleSpec | None":
        """Finds the package; its modules are then found in its folder."""
        root = HERE.parents[3]
        if name != root.name:
            return None
        return importlib.util.spec_from_file_location(
            name, root / "__init__.py", submodule_search_locations=[str(root)]
        )


def install() -> None:
    """Installs the hooks. An error becomes a line for the profiling process, and the program runs without them."""
    folder = Path(os.environ["MEDDDPM_PROFILE_FOLDER"])
    try:
        from medddpm.measure.profile.program import hooked

        hooked.install()
    except Exception as error:
        (folder / "unhooked").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")


def chain() -> None:
    """Runs the environment's own sitecustomize, if there is one."""
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":  # as Python imports it at its start
    folder = os.environ.get("MEDDDPM_PROFILE_FOLDER", "")
    if os.path.isdir(folder):  # it is gone for a process that outlives the profile
        Path(folder, "python").touch()
        sys.meta_path.insert(0, AfterTorch())
        sys.meta_path.append(Package())
    chain()
