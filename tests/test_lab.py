"""The book in JupyterLab, as `make lab` opens it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from helpers.browser import browser, needs_browser
from helpers.repository import ROOT
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelspec import get_kernel_dict

from study.book import ENVIRONMENT, KERNEL, LANGUAGE

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
DEFAULTS = ROOT / "site" / "lab"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_names_the_kernel_and_no_version_of_python(path: Path) -> None:
    metadata = nbformat.read(path, as_version=4).metadata
    assert metadata["kernelspec"] == KERNEL
    assert metadata["language_info"] == LANGUAGE == {**IPythonKernel.language_info, "version": "3"}


def test_the_books_kernel_is_ipykernels_with_the_books_environment() -> None:
    spec = json.loads((DEFAULTS / "kernels" / "python3" / "kernel.json").read_text())
    assert spec["argv"][1:] == get_kernel_dict()["argv"][1:]
    for name in ("display_name", "language"):
        assert spec[name] == KERNEL[name] == get_kernel_dict()[name]
    assert spec["env"].items() <= ENVIRONMENT.items()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a JupyterLab as `make lab` starts it, also for root, over a copy of some of the book; the copy."""
    book = tmp_path / "book"
    (book / "notebooks").mkdir(parents=True)
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, book)
    shutil.copytree(ROOT / "site", book / "site")
    (book / "figures").mkdir()
    shutil.copy(ROOT / "figures" / "00_window.png", book / "figures")
    for path in NOTEBOOKS:
        if path.name[:2] in ("00", "01", "06", "24"):
            shutil.copy(path, book / "notebooks")
    (recipe,) = re.findall(r"^lab: .+\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    recipe = recipe.replace("\t", "").replace("$(CURDIR)", str(book)).replace("$$", "$")
    recipe = recipe.replace(".venv/bin/jupyter", f"{shlex.quote(sys.executable)} -m jupyter")
    options = "--no-browser --ServerApp.port=0 --IdentityProvider.token='' --expose-app-in-browser"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path)}
    environment |= {"JUPYTER_DATA_DIR": str(tmp_path / "data"), "JUPYTER_RUNTIME_DIR": str(tmp_path / "run")}
    environment.pop("JUPYTER_PATH", None)
    server = subprocess.Popen(
        ["bash", "-ec", recipe.replace("$(ARGS)", options)],
        cwd=book, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert server.stderr is not None
    lines = []
    for line in server.stderr:
        lines.append(line)
        if found := re.search(r"(http://(?:localhost|127\.0\.0\.1):\d+)", line):
            break
    else:
        pytest.fail("".join(lines))
    yield found[1], book
    os.killpg(server.pid, 15)
    server.wait(timeout=20)


@needs_browser
def test_the_book_opens_rendered_and_trusted_and_no_file_changes(lab: tuple[str, Path]) -> None:
    address, book = lab
    before = {path: path.read_bytes() for path in book.rglob("*.ipynb")}
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(60_000)
        page.goto(address)
        page.wait_for_selector(".jp-MarkdownViewer h1")
        assert "/lab/tree/README.md" in page.url
        page.locator(".jp-MarkdownViewer a", has_text=re.compile("^verdicts$")).click()
        page.wait_for_selector("tr#P085", state="attached")
        page.locator('.jp-Notebook a[title^="P085 "]').click()
        page.wait_for_function("() => document.getElementById('P085').getBoundingClientRect().top < 800")
        assert page.locator(".claims table").bounding_box()["width"] <= 1150
        _open(page, address, "06_fig04_ipc_stacks")
        page.locator(".jp-Notebook:visible a[href*=verdicts]", has_text=re.compile(r"^P\d{3}$")).first.click()
        page.wait_for_url(
            "**/lab/tree/notebooks/24_all_verdicts.ipynb"
        )  # JupyterLab opens it, and scrolls to headings only
        _open(page, address, "01_train")
        page.wait_for_selector(".jp-OutputArea iframe", state="attached")  # the viewer: shown only if trusted
        settings = page.evaluate(
            """async () => {
                const id = '@jupyterlab/docmanager-extension:plugin';
                const answer = await fetch('/lab/api/settings/' + id);
                return (await answer.json()).schema.properties.autosave.default;
            }"""
        )
    assert settings is False
    assert {path: path.read_bytes() for path in before} == before


@needs_browser
def test_the_essays_window_moves_if_trusted_and_else_its_picture_stays(lab: tuple[str, Path]) -> None:
    address, book = lab
    other = json.loads((book / "notebooks" / "00_summary.ipynb").read_text())
    other["cells"][-1]["source"] = ["# changed since it was trusted"]
    (book / "notebooks" / "00_untrusted.ipynb").write_text(json.dumps(other))
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(60_000)
        _open(page, address, "00_summary")
        page.locator(".launch-window .ratio").wait_for()
        assert page.locator('img[alt^="Still picture"]').is_hidden()
        page.get_by_role("slider", name="first launch of the window").focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")  # moves the window, and chooses no cell
        assert "launches 13 to 112" in page.locator(".launch-window .words").inner_text()
        _open(page, address, "00_untrusted")
        shown = page.locator(".jp-Notebook:visible")
        shown.locator(".untrusted").wait_for()
        assert shown.locator('img[alt^="Still picture"]').is_visible()
        assert (
            shown.locator(".launch-window")
            .inner_text()
            .startswith("JupyterLab shows the window to drag once you trust")
        )
        page.close()


def _open(page: Any, address: str, name: str) -> None:
    """Opens a notebook and waits for its kernel."""
    page.goto(f"{address}/lab/tree/notebooks/{name}.ipynb")
    page.wait_for_function(
        """name => {
            const panel = window.jupyterapp?.shell.currentWidget;
            const kernel = panel?.context?.sessionContext?.session?.kernel;
            return panel?.context?.path.endsWith(name + '.ipynb') && kernel?.status === 'idle';
        }""",
        arg=name,
    )
