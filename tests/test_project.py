from __future__ import annotations

import ast
import fnmatch
import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from types import FunctionType, ModuleType

import nbformat
import pandas as pd
import pytest
import yaml
from helpers.pages import page_text
from helpers.repository import ROOT
from nbformat import NotebookNode
from nbval.plugin import find_comment_markers, find_metadata_tags
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from medddpm.measure import summaries, windows
from medddpm.measure.tables import read_meta, read_table
from study.bench import sentences, tables
from study.bench.settings import BENCH_SETTINGS, ORDINARY
from study.claims import verdicts
from study.convnext import tables as convnext
from study.parity import tables as parity
from study.profile import tables as kernel_tables
from study.records import schemas
from study.scaling import tables as scaling

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|mnt|opt|usr|var)/[\w.]")
LARGEST = 16 * 2**20

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED_FOR = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
DIRECT = [r for group in ASKED_FOR for r in map(Requirement, group) if r.name != PROJECT["name"]]  # [book] has [train]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())


def lock_lines() -> list[str]:
    return [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]


def pins(lines: list[str]) -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def conda_pip_lines() -> list[str]:
    return next(d["pip"] for d in ENVIRONMENT["dependencies"] if isinstance(d, dict))


def test_lock_pins_one_version_of_everything() -> None:
    odd = [line for line in lock_lines() if not re.fullmatch(r"[\w.-]+==\d[\w.]*", line)]
    assert odd == []
    assert [n for n, count in Counter(pins([line]).popitem()[0] for line in lock_lines()).items() if count > 1] == []
    assert pins(lock_lines())["torch"] == "2.13.0"


@pytest.mark.parametrize("requirement", DIRECT, ids=lambda r: r.name)
def test_each_dependency_is_locked_in_its_range_and_the_same_for_conda(requirement: Requirement) -> None:
    name = canonicalize_name(requirement.name)
    locked = pins(lock_lines())[name]
    assert requirement.specifier, f"{name} has no lower bound"
    assert Version(locked) in requirement.specifier
    assert pins([line for line in conda_pip_lines() if not line.startswith("--")])[name] == locked


def test_conda_installs_nothing_else() -> None:
    plain = [d for d in ENVIRONMENT["dependencies"] if isinstance(d, str)]
    python = next(d for d in plain if d.startswith("python="))
    assert Version(python.removeprefix("python=")) in SpecifierSet(PROJECT["requires-python"])
    assert set(plain) - {python} == {"pip", "make"}
    assert [line for line in conda_pip_lines() if line.startswith("--")] == [
        "--constraint requirements.lock",
        "--editable .",
    ]
    packages = pins([line for line in conda_pip_lines() if not line.startswith("--")])
    assert set(packages) == {canonicalize_name(r.name) for r in DIRECT}


def test_binder_installs_the_books_packages_at_the_same_versions() -> None:
    """A Binder has no GPU, so it takes PyTorch's build for the CPU; paths in the file are relative to its folder."""
    folder = ROOT / ".binder"
    environment = yaml.safe_load((folder / "environment.yml").read_text())
    python, pip, packages = environment["dependencies"]
    assert [python, pip] == ["python=3.12", "pip"]
    options = [line for line in packages["pip"] if line.startswith("-")]
    assert options[1:] == ["-c ../requirements.lock", "-e .."]
    pinned = pins([line for line in packages["pip"] if not line.startswith("-")])
    assert pinned.pop("torch") == f"{pins(lock_lines())['torch']}+cpu"
    extras = PROJECT["optional-dependencies"]
    asked = map(Requirement, [*PROJECT["dependencies"], *extras["train"], *extras["book"]])
    names = {canonicalize_name(r.name) for r in asked} - {PROJECT["name"], "torch"}
    assert pinned == {name: pins(lock_lines())[name] for name in names}
    for name in ("postBuild", "start"):
        assert os.access(folder / name, os.X_OK)
        subprocess.run(["bash", "-n", str(folder / name)], check=True)
    assert "pip install --no-deps -r requirements.nodeps.lock" in (folder / "postBuild").read_text()


def test_colab_is_told_to_install_what_there_is() -> None:
    (asked,) = re.findall(r'%pip install --editable "book\[(\w+)\]"', (ROOT / "site" / "run.md").read_text())
    assert asked in PROJECT["optional-dependencies"]


def test_some_packages_are_installed_without_what_they_require_and_every_setup_says_so() -> None:
    lines = [line for line in (ROOT / "requirements.nodeps.lock").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==\d[\w.]*", line)] == []
    assert "dynamic-network-architectures" in pins(lines)
    assert not set(pins(lines)) & set(pins(lock_lines())), "`make lock` would give it its requirements"
    makefile = (ROOT / "Makefile").read_text()
    (ready,) = re.findall(r"^\$\(READY\): (.+)\n((?:\t.+\n)+)", makefile, re.MULTILINE)
    assert {"requirements.lock", "requirements.nodeps.lock"} <= set(ready[0].split())
    installs = [line.partition(" install ")[2] for line in ready[1].splitlines() if "pip install" in line]
    assert installs[1] == "-qq --no-compile -r requirements.lock"  # after torch by itself, if CPU=1
    assert installs[2] == "-qq --no-compile --no-deps -r requirements.nodeps.lock"
    for name in ("environment.yml", "site/commands.md"):
        assert "pip install --no-deps -r requirements.nodeps.lock" in (ROOT / name).read_text()


def test_nnunets_networks_need_only_what_is_locked() -> None:
    name = "dynamic-network-architectures"
    required = {canonicalize_name(Requirement(text).name) for text in importlib.metadata.requires(name) or []}
    assert required - set(pins(lock_lines())) == {"timm"}, "then requirements.nodeps.lock tells it wrong"
    code = "import sys, dynamic_network_architectures.architectures.unet; sys.exit('timm' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ci_calls_exactly_make_test() -> None:
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if "make" in line and line[0] != "#"]
    assert commands == ["exec make test"]


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_tracked_file_is_large() -> None:
    assert [str(p) for p in tracked_files() if p.stat().st_size > LARGEST] == []


@pytest.fixture(params=NOTEBOOKS, ids=lambda p: p.stem)
def notebook(request: pytest.FixtureRequest) -> NotebookNode:
    return nbformat.read(request.param, as_version=4)


def code_cells(nb: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def parameter_cells(nb: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in code_cells(nb) if "parameters" in cell.metadata.get("tags", [])]


def is_checked(cell: NotebookNode) -> bool:
    options = dict(find_metadata_tags(cell.metadata)) | dict(find_comment_markers(cell.source))
    return options.get("check", True) and not options.get("skip", False)


def test_notebook_is_stored_as_one_clean_run(notebook: NotebookNode) -> None:
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert [o.ename for cell in cells for o in cell.outputs if o.output_type == "error"] == []
    assert notebook.metadata.kernelspec.name == "python3"


def test_notebook_cells_are_short(notebook: NotebookNode) -> None:
    assert [cell.source for cell in code_cells(notebook) if len(cell.source.splitlines()) > 25] == []


def prose(nb: NotebookNode) -> list[str]:
    return [cell.source for cell in nb.cells if cell.cell_type == "markdown"]


def test_notebook_opens_with_its_title(notebook: NotebookNode) -> None:
    assert re.match(r"# \d\d · \S", notebook.cells[0].source)


def test_notebook_links_each_claims_number_to_its_row(notebook: NotebookNode) -> None:
    page = "" if notebook.cells[0].source.startswith("# 00") else "00_summary.ipynb"
    text = "\n".join(prose(notebook))
    numbers = re.findall(r"\bP\d{3}\b", re.sub(r"\]\([^)]*\)", "]", text))
    assert re.findall(rf"\[(P\d{{3}})\]\({re.escape(page)}#\1\)", text) == numbers


@pytest.mark.parametrize("path", NOTEBOOKS[1:], ids=lambda p: p.stem)  # all but the summary
def test_notebook_shows_its_finding_before_any_code(path: Path) -> None:
    """One sentence, then a picture with a text, which the notebook itself draws; and it ends with the differences."""
    nb = nbformat.read(path, as_version=4)
    _, sentence, picture, *_ = nb.cells[0].source.split("\n\n")
    assert re.fullmatch(r"[^.]*([.]\S[^.]*)*[.]", sentence), "one sentence"
    found = re.fullmatch(r"!\[[^]]{10,}\]\(\.\./(figures/\w+\.png)\)", picture)
    assert found
    assert (ROOT / found[1]).is_file()
    assert any(fnmatch.fnmatch(found[1], pattern) for pattern in nb.metadata["medddpm"]["outputs"])
    assert "## Differences from the " in prose(nb)[-1]


def test_notebook_has_one_cell_of_annotated_literals(notebook: NotebookNode) -> None:
    (cell,) = parameter_cells(notebook)
    for statement in ast.parse(cell.source).body:
        assert isinstance(statement, ast.AnnAssign)
        assert statement.value is not None
        assert statement.lineno == statement.end_lineno, "papermill reads parameters line by line"
        ast.literal_eval(statement.value)


def test_notebook_asks_a_module_only_for_what_it_defines(notebook: NotebookNode) -> None:
    """Cells under `if measure:` never run here: a name that was moved or renamed would be missed on a GPU only."""
    source = "\n".join(cell.source.replace("%matplotlib inline", "") for cell in code_cells(notebook))
    nodes = list(ast.walk(ast.parse(source)))
    modules = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("medddpm", "study")):
            package = importlib.import_module(str(node.module))
            for alias in node.names:
                found = getattr(package, alias.name, None) or importlib.import_module(f"{node.module}.{alias.name}")
                modules |= {alias.asname or alias.name: found} if isinstance(found, ModuleType) else {}
    asked = {
        (node.value.id, node.attr)
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
    }
    elsewhere = {
        f"{name}.{attribute}"
        for name, attribute in asked
        if attribute not in (own := vars(modules[name]))
        or (isinstance(own[attribute], type | FunctionType) and own[attribute].__module__ != own["__name__"])
    }
    assert not elsewhere


def test_notebook_declares_what_it_reads_and_writes(notebook: NotebookNode) -> None:
    declared = notebook.metadata.get("medddpm", {})
    assert set(declared) == {"inputs", "outputs", "parameters"}
    assert all(isinstance(pattern, str) for name in ("inputs", "outputs") for pattern in declared[name])
    (cell,) = parameter_cells(notebook)
    literals = {
        s.target.id: ast.literal_eval(s.value) for s in ast.parse(cell.source).body if isinstance(s, ast.AnnAssign)
    }
    assert declared["parameters"] == {name: value for name, value in literals.items() if name != "measure"}


def test_notebook_output_names_no_machine(notebook: NotebookNode) -> None:
    outputs = [o for cell in code_cells(notebook) for o in cell.outputs]
    pictures = ("image/png", "image/jpeg")  # base64, which may spell anything
    texts = [o.get("text", "") for o in outputs]
    texts += [str(t) for o in outputs for kind, t in o.get("data", {}).items() if kind not in pictures]
    assert [found.group() for text in texts if (found := MACHINE_PATH.search(text))] == []


def test_notebook_output_that_cannot_repeat_is_followed_by_a_check(notebook: NotebookNode) -> None:
    cells = code_cells(notebook)
    for place, cell in enumerate(cells):
        if not is_checked(cell):
            after = [c for c in cells[place + 1 :] if is_checked(c) and (c.outputs or "assert" in c.source)]
            assert after, f"nothing checks what this cell did: {cell.source}"


def executed(source: str, count: int, printed: str = "", tags: tuple[str, ...] = ()) -> NotebookNode:
    outputs = [nbformat.v4.new_output("stream", name="stdout", text=printed)] if printed else []
    return nbformat.v4.new_code_cell(source, execution_count=count, outputs=outputs, metadata={"tags": list(tags)})


AS_STORED = executed("x = 1", 3)
STRAY = executed("open('../stray.txt', 'w').close()", 3)


@pytest.mark.parametrize(
    ("last", "processes", "code", "printed"),
    [
        (AS_STORED, 0, 0, "notebook cells compared: 2 (of 3 code cells; 1 with output that cannot repeat)"),
        (AS_STORED, 2, 0, "notebook cells compared: 2 (of 3 code cells; 1 with output that cannot repeat)"),
        (executed("print(3)", 3, "4\n"), 0, 1, "notebook cells compared: 2 (of 3 code cells;"),
        (STRAY, 0, 1, "stray.txt: changed while the notebooks ran"),
        (STRAY, 2, 1, "stray.txt: changed while the notebooks ran"),
        (executed("open('../figures/a.txt', 'w').close()", 3), 0, 0, "notebook cells compared: 2 (of 3"),
    ],
    ids=["as stored", "as stored, two", "another output", "a stray file", "a stray file, two", "a figure"],
)
def test_notebooks_are_compared_counted_and_kept_to_their_folders(
    tmp_path: Path, last: NotebookNode, processes: int, code: int, printed: str
) -> None:
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "figures").mkdir()
    (tmp_path / "notebooks").mkdir()
    nb = nbformat.v4.new_notebook()
    cannot_repeat = executed("import time; print(time.time())", 2, "0\n", ("nbval-ignore-output",))
    nb.cells = [executed("print(1)", 1, "1\n"), cannot_repeat, last]
    nbformat.write(nb, tmp_path / "notebooks" / "01.ipynb")
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider", "notebooks"]
    command += ["-p", "nbval.plugin", "-p", "xdist.plugin", "-n", str(processes), "--dist", "loadfile"]
    # Other plugins do nothing here and take longer to load than the three cells to run.
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert printed in done.stdout
    assert done.returncode == code


def python_files() -> list[Path]:
    return sorted(path for part in ("medddpm", "study") for path in (ROOT / part).rglob("*.py"))


def test_a_file_that_is_read_is_never_run() -> None:
    """As SECURITY.md promises: PyTorch's files as tensors only, NumPy's without pickles, no text as code."""
    calls = [
        node for path in python_files() for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    ]
    loads = [ast.unparse(call) for call in calls if ast.unparse(call.func) in ("torch.load", "np.load")]
    assert [text for text in loads if text.startswith("torch") and "weights_only=True" not in text] == []
    assert [text for text in loads if "allow_pickle" in text] == []
    unsafe = {"eval", "exec", "pickle.load", "pickle.loads", "yaml.load"}
    assert not unsafe & {ast.unparse(call.func) for call in calls}


def test_citation_and_changelog_know_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    links = {reference["doi"] for reference in citation["references"]}
    assert links <= {url.removeprefix("https://doi.org/") for url in PROJECT["urls"].values()}
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[:2] == ["Unreleased", PROJECT["version"]]


@pytest.mark.parametrize(("gpu", "page"), [("H100", "README.md"), ("H200", "site/fast_path.md")])
def test_pages_repeat_what_the_bench_comes_to(gpu: str, page: str) -> None:
    said = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", page_text(page))  # a link's words alone
    assert sentences.headline(tables.recorded(ROOT)[gpu], gpu) in said


def test_the_fast_paths_page_says_under_which_versions_all_was_measured() -> None:
    for record in tables.recorded(ROOT).values():
        versions = {name: set(record[name].dropna().astype(str)) for name in ("torch", "cuda", "cudnn", "triton")}
        assert versions == {"torch": {"2.11.0+cu130"}, "cuda": {"13.0"}, "cudnn": {"91900"}, "triton": {"3.6.0"}}
    assert "under PyTorch 2.11, CUDA 13.0, cuDNN 9.19 and Triton 3.6." in page_text("site/fast_path.md")
    levers = read_table(ROOT / "figures" / "records" / "H100" / "throughput.csv", schemas.THROUGHPUT)
    eager = levers[levers["choice"] == "no CUDA graph"].iloc[0]
    took = tables.rows_of(tables.recorded(ROOT)["H100"], "med-ddpm", "step").loc["FAST eager", "median_ms"]
    elsewhere = 1e3 * eager["batch"] / eager["volumes_a_second"]
    said = f"({took:.0f} ms, as the GPU waited for the host; {elsewhere:.1f} on another H100's host)"
    assert said in page_text("site/fast_path.md")


def test_readme_repeats_what_other_peoples_networks_gain() -> None:
    record = tables.compared(tables.recorded(ROOT))
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", (ROOT / "README.md").read_text())  # a link's words alone
    rows = re.search(r"^\|network \(H100;.*\n\|---\|---\|---\|---\|\n((?:\|.*\n)+)", plain, re.MULTILINE)
    assert rows
    assert rows[1].splitlines() == sentences.network_rows(record)
    assert " ".join(sentences.network_limits(record).split()) in " ".join(plain.split())
    page = page_text("site/fast_path.md")
    apart = tables.others(record)["apart_h"].drop("monai-mednext")
    assert (apart > 1 / 6).sum() == 8, "README says so: those ran on another H100"
    assert sentences.network_gaps(record) in page
    measured = tables.others(record)
    tools = measured[list(ORDINARY)].dropna(axis="columns", how="all").columns
    kinds = ("autocast benchmark", "compile benchmark", "reduce-overhead", "max-autotune")
    named = {f"{kind}{layout}" for kind in kinds for layout in ("", " channels-last")}
    assert set(tools) == named | {"PyTorch", "cudnn.benchmark"}, "README names the tools"
    modes = (measured.filter(like=mode) for mode in ("reduce-overhead", "max-autotune"))
    faster, searched = (mode.dropna(how="all").idxmin(axis="columns") for mode in modes)
    assert faster[searched.index].str.replace("reduce-overhead", "max-autotune").equals(searched), "the page says so"
    assert len(searched) == 13
    both = tables.rows_of(tables.recorded(ROOT)["H100"], "monai-mednext", "step")["median_ms"]
    for tool in ("autocast benchmark", "compile benchmark", "reduce-overhead"):
        assert both[f"{tool} channels-last"] == pytest.approx(both[tool], rel=1e-3), "contiguous both, as the page says"
    for network, gain in (("nnunet-plain-deep", "1.88"), ("nnunet-residual", "1.72")):
        steps = tables.rows_of(record, network, "step")["median_ms"]
        assert f"{steps['compile benchmark'] / steps['accelerate']:.2f}" == gain
    assert "the steps of README's table gain 1.88 and 1.72" in page_text("site/clients.md")
    both = measured.filter(like="max-autotune").notna().all(axis="columns")
    assert both.index[both].tolist() == ["monai-unet-batch"], "the fast path's page says so"
    largest = {ours: measured[ours] / measured["peak_best_gib"] for ours in ("peak_gib", "peak_step_gib")}
    assert [ratio.idxmax() for ratio in largest.values()] == ["monai-attention-unet", "monai-unet-batch"]
    ours, step = (f"{ratio.max():.2f}" for ratio in largest.values())
    said = f"The largest ratio of memory, {ours}, is that of `AttentionUnet`; with `graphed_step` it is {step}, that"
    assert f"{said} of `UNet` with batch norm." in page_text("site/fast_path.md")


def test_the_fast_paths_page_repeats_what_the_h200s_record_has_of_fast() -> None:
    found = tables.by_setting(tables.recorded(ROOT)["H200"])
    base, fast, tf32, autocast = (found.loc[name] for name in ("BASE", "FAST", "FAST tf32", "autocast channels-last"))
    page = page_text("site/fast_path.md")
    assert f"a forward pass takes {fast['forward_ms']:.1f} ms (BASE: {base['forward_ms']:.0f})" in page
    assert f"in 250 steps takes {fast['sample_s']:.1f} s (BASE: {base['sample_s']:.0f})" in page
    assert f"needs {fast['peak_gib']:.1f} GiB (BASE: {base['peak_gib']:.1f} GiB)" in page
    errors = [f"{100 * row['error_output']:.{places}f}%" for row, places in ((fast, 1), (autocast, 1), (tf32, 2))]
    said = "output differs from BASE's by {}; the output under BF16 autocast differs by {}."
    assert said.format(*errors) in page
    assert f"differs by {errors[2]}, and a step is {tf32['step_gain']:.1f} times as fast as BASE's" in page


def test_the_summary_repeats_what_other_notebooks_find() -> None:
    cells = nbformat.read(ROOT / "notebooks" / "00_summary.ipynb", as_version=4).cells
    text = " ".join(" ".join(cell.source for cell in cells).split())
    block = convnext.times(convnext.recorded(ROOT, "convnext_kernels")["H100"], "block", 64)["graph_us"]
    by_hand = block[["fused", "tensor", "tensor, async"]].min()
    triton, compiled = by_hand / block[["Triton", "torch.compile BF16"]]
    assert f"takes {triton:.1f} times as long as one in Triton, and {compiled:.1f} times as long as one by" in text
    kernels = kernel_tables.kernels(ROOT, ("window", "step", *(f"window-{start}" for start in (0, 160, 300, 640))))
    cycles = windows.profiled(kernels[kernels["gpu"] == "H100"], "OPT2", "BASE")["cycles_active"]
    assert f"from {1 / cycles.min():.0f} times fewer cycles to {cycles.max():.0f} times as many" in text
    steps = scaling.as_trained(scaling.efficiency(scaling.recorded(ROOT)["H100"]))
    which = "network == 'med-ddpm' and setting == 'FAST' and micro_steps == 2 and gradient_dtype == 'fp32'"
    weak = steps.query(which).set_index("gpus")["weak"]
    told = f"reach {weak[2]:.0f}% of twice one's speed, four {weak[4]:.0f}% of four times"
    assert f"two GPUs, each with two volumes ready, {told}" in text


def test_the_page_of_commands_repeats_what_a_step_takes() -> None:
    took = tables.rows_of(tables.recorded(ROOT)["H100"], "med-ddpm", "step")["median_ms"]
    said = f"then takes {took['BASE']:.0f} ms; with `--setting fast` it takes {took['FAST']:.0f} ms."
    assert said in page_text("site/commands.md")


def test_the_fast_paths_page_repeats_what_other_peoples_networks_gain() -> None:
    records, page = tables.recorded(ROOT), page_text("site/fast_path.md")
    assert sentences.network_gains(tables.compared(records), tables.COMPARED_ON) in page
    record = records["H200"]
    anew = record[record["date"] >= "2026-11-26"]  # the other rows are older, and of other runs
    assert sentences.network_gains(anew, "H200") in page
    now = tables.others(anew)
    best = now["best_ms"].dropna()
    assert best.equals(tables.others(record)["best_ms"][best.index]), "an older tool is faster"
    searched = now.filter(like="max-autotune").notna().any(axis="columns")
    assert searched.sum() == 10
    assert "`max-autotune` for ten networks" in page
    both = now.filter(like="max-autotune").notna().all(axis="columns")
    assert set(both.index[both]) == {"monai-unet-batch", "nnunet-plain-deep"}
    h100 = tables.others(records["H100"])
    search, replay = (h100.filter(like=mode).min(axis="columns") for mode in ("max-autotune", "reduce-overhead"))
    unetr, vnet = (replay / search)[["monai-unetr", "monai-vnet"]]
    assert not searched[["monai-unetr", "monai-vnet"]].any()
    diffusion = (replay / search)["monai-diffusion"]
    assert f"{diffusion:.2f}" == f"{vnet:.2f}"
    told = f"{unetr:.2f} times as fast as `reduce-overhead` for `UNETR` and {vnet:.2f} times for `VNet`"
    assert f"{told} and for `DiffusionModelUNet`." in page
    replays = h100.filter(like="reduce-overhead").dropna(how="all").idxmin(axis="columns")
    assert all(pd.notna(now.loc[network, replays[network]]) for network in best.index)


def test_pages_say_what_the_tools_timed_again_come_to() -> None:
    records, page, readme = tables.recorded(ROOT), page_text("site/fast_path.md"), page_text("README.md")
    mednext = tables.rows_of(records["H200"], "monai-mednext", "step")["median_ms"]
    best = mednext[mednext.index.isin(ORDINARY)].idxmin()
    assert best == "max-autotune channels-last"
    strided, contiguous = (mednext[tool] / mednext["accelerate"] for tool in (best, "reduce-overhead"))
    took = f"takes {mednext[best]:.0f} ms (`max-autotune`) in place of {mednext['reduce-overhead']:.0f} ms"
    assert f"{took}, and `accelerate` is {strided:.2f} times as fast, not {contiguous:.1f}." in page
    h100 = tables.others(records["H100"])
    assert f"the H100's, {h100.loc['monai-mednext', 'ratio']:.2f}, is too large" in page
    replay = [
        rows["reduce-overhead channels-last"] / rows["accelerate"]
        for card in ("H200", "H100")
        for rows in (tables.rows_of(records[card], f"monai-{name}", "step")["median_ms"] for name in ("unetr", "vnet"))
    ]
    said = "is {} (`UNETR`) and {} times (`VNet`) as fast on an H200; against `reduce-overhead` without them it is {}"
    said += " and {} times as fast on the H100."
    assert said.format(*(f"{ratio:.2f}" for ratio in replay)) in page
    captured = "compile graph channels-last"
    batch = next(rows["median_ms"] for rows in tables.on_other_hosts(ROOT, "H200") if captured in rows.index)
    by_hand = tables.by_hand(records["H200"]).sort_values()
    slower = batch[[captured, "compile graph"]].min() / batch["graphed_step"]
    assert [by_hand.index[place] for place in (0, -1)] == ["monai-vnet", "monai-basic-unet"]
    assert (len(by_hand) + 1, tables.HOST_BOUND in by_hand.index) == (6, False)
    low, high = by_hand.iloc[0], by_hand.iloc[-1]
    assert low < slower < high
    said = f"takes {low:.2f} times (`VNet`) to {high:.2f} times (`BasicUNet`) as long as `graphed_step`'s, in six"
    assert f"{said} networks; {batch[captured]:.2f} ms for `UNet` with batch norm, {slower:.2f} times" in page
    assert f"as the setting `{BENCH_SETTINGS[captured].slug}` of `python -m study bench` does" in page
    others = tables.others(records["H200"]).loc[by_hand.index]
    faster = (others["best_ms"] / others["step_ms"])[others["best_ms"] < by_hand * others["step_ms"]]
    names = ["monai-unet", "monai-attention-unet"]
    assert set(faster.index) == set(names)
    said = "it takes {:.2f} and {:.2f} times as long as `graphed_step`".format(*faster[names])
    told = "For `UNet` and `AttentionUnet` the ordinary `max-autotune`, timed on another H200, is faster"
    assert f"{told} than such a step: {said}" in page
    where = "[captured by hand](site/fast_path.md#how-the-tools-were-timed) (default mode; six networks, H200s)"
    assert f"was {low:.2f} to {high:.2f} times as fast as compiled steps {where}." in readme
    basic = tables.rows_of(records["H200"], "monai-basic-unet", "step")["median_ms"]
    said = f"takes {basic['compile graph']:.2f} ms on an H200 (`reduce-overhead`: {basic['reduce-overhead']:.2f})."
    assert said in page
    plain = tables.rows_of(records["H200"], "nnunet-plain-deep", "step")
    replay, search = (plain.loc[[tool, f"{tool} channels-last"]] for tool in ("reduce-overhead", "max-autotune"))
    slower = replay["median_ms"].iloc[1] / replay["median_ms"].iloc[0]
    hours = pd.to_datetime(replay["date"]).diff().dt.total_seconds().abs().iloc[1] / 3600
    assert f"contiguous is {slower:.2f} times as fast as channels-last with `reduce-overhead` (measured ten" in page
    assert round(hours) == 10
    assert search["median_ms"].iloc[1] == pytest.approx(search["median_ms"].iloc[0], rel=1e-3), "as fast, says the page"


def test_the_fast_paths_page_says_what_torch_compile_makes_of_accelerate() -> None:
    page, record = page_text("site/fast_path.md"), tables.recorded(ROOT)["H200"]
    networks = ("monai-basic-unet", "monai-unet", "monai-segresnet", "monai-unet-batch")
    of_each = {network: tables.rows_of(record, network, "step")["median_ms"] for network in networks[:3]}
    late = {}
    for card in ("H100", "H200"):
        found = next(rows for rows in tables.on_other_hosts(ROOT, card) if "FAST reduce-overhead" in rows.index)
        late[card] = found["median_ms"]
    steps = pd.DataFrame(of_each | {networks[3]: late["H200"]})
    relative = steps / steps.loc["accelerate"]
    assert relative.loc["FAST compile", list(networks[:3])].notna().all()
    least, middle, most, batch = relative.loc["FAST reduce-overhead"].map("{:.2f}".format)
    told = f"for `BasicUNet`, {middle} times for `UNet`, {most} times for `SegResNet` (all three were timed some"
    assert f"takes {least} times as long as with `accelerate` alone {told} 40 hours before `accelerate`," in page
    assert f"on other hosts) and {batch} times for `UNet` with batch norm." in page
    dates = {network: tables.rows_of(record, network, "step")["date"] for network in networks[:3]}
    when = pd.DataFrame(dates).apply(pd.to_datetime)
    hours = (when.loc["accelerate"] - when.loc["FAST reduce-overhead"]).dt.total_seconds() / 3600
    assert hours.between(40, 41).all()
    took = late["H100"]["FAST reduce-overhead"] / late["H100"]["accelerate"]
    assert f"one H100 it took {took:.2f} times as long for `UNet`" in page
    low, high = relative.loc["FAST compile"].agg(["min", "max"])
    assert f"`default` it takes {low:.1f} to {high:.1f} times as long for the same three" in page


def test_pages_say_what_the_host_makes_of_the_smallest_step() -> None:
    readme, page = page_text("README.md"), page_text("site/fast_path.md")
    runs = {card: tables.every_run(ROOT, card) for card in ("H100", "H200")}
    table = (ROOT / "site" / "fast_path.md").read_text()
    assert "".join(f"{row}\n" for row in sentences.run_rows(runs)) in table
    others = pd.concat([runs["H100"].iloc[:-1], runs["H200"]])  # README has the H100's last
    (low, high), (least, most) = (others[ratio].agg(["min", "max"]) for ratio in ("ratio", "step_ratio"))
    said = (
        f"`UNet` with batch norm had ratios of {low:.2f} to {high:.2f}, with `graphed_step` {least:.2f} to {most:.2f}."
    )
    where = "In [other runs](site/fast_path.md#the-smallest-step) (either card, most without `max-autotune`)"
    assert f"{where} {said}" in readme
    every = pd.concat(runs.values())
    low, high = every["launch_ms"].agg(["min", "max"])
    assert f"than the GPU takes to run it: {low:.2f} to {high:.2f} ms, where the GPU takes 2.4." in page
    assert set(every["step_ms"].dropna().round(1)) == {2.4}
    assert (every["launch_ms"] > 2.4).mean() > 0.9
    of_each = [rows for card in runs for rows in tables.on_other_hosts(ROOT, card)]
    searched = sum(rows.index.str.startswith("max-autotune").any() for rows in of_each) + len(runs)
    assert (searched, len(every)) == (8, 21)
    searches = every["best"].str.startswith("max-autotune")
    assert every["apart_h"][searches & every["apart_h"].gt(1)].round().tolist() == [6]
    assert runs["H100"]["apart_h"].idxmax() == 0
    assert of_each[0].loc["max-autotune", "date"] < of_each[0].loc["accelerate", "date"]
    assert every["step_ms"].isna().sum() == 4
    said = "include `max-autotune`, one of them six hours before `accelerate`; four lack `graphed_step`."
    assert f"Eight of the runs {said} In one run on an H200" in page
    by_hand = [rows.index.str.contains("graph channels-last").any() for rows in of_each]
    assert [card for card in runs for _ in tables.on_other_hosts(ROOT, card)][by_hand.index(True)] == "H200"
    assert sum(by_hand) == 1


def test_the_fast_paths_page_says_how_many_tests_passed_on_the_cards() -> None:
    said = []
    for card, name, where in (("H100", "gpu_tests", "an H100"), ("H200", "gpu_tests_2_gpus", "two H200s")):
        record = ROOT / "figures" / "records" / card / f"{name}.csv"
        day = pd.Timestamp(read_meta(record)["date"]).day
        counts = read_table(record, schemas.GPU_TESTS).groupby("outcome")["tests"].sum()
        assert set(counts.index) == {"passed", "skipped"}
        said.append(f"{counts['passed']} passed and {counts['skipped']} were skipped on {where} ({day} November)")
    assert f"records the tests on the cards: {'; '.join(said)}." in page_text("site/fast_path.md")


def test_pages_say_what_pytorch_out_of_the_box_takes() -> None:
    found = tables.others(tables.recorded(ROOT)["H100"])
    longer = (found["PyTorch"] / found["accelerate_ms"]).dropna()
    low, high = longer.min(), longer.max()
    said = f"takes {low:.2f} to {high:.2f} times as long as `accelerate` in the twelve networks where it was timed "
    assert set(found.index) - set(longer.index) == {"monai-mednext", "monai-diffusion", "monai-diffusion-attention"}
    but = "(all but `MedNeXt` and both `DiffusionModelUNet`s), "
    assert f"{said}{but}{longer.median():.2f} times in the median" in page_text("site/fast_path.md")
    assert f"took {low:.1f} to {high:.1f} times `accelerate`'s time" in page_text("README.md")


def test_a_page_repeats_what_nnunets_own_benchmark_took() -> None:
    record = read_table(ROOT / "figures" / "records" / "H100" / "nnunet.csv", schemas.NNUNET)
    page = (ROOT / "site" / "clients.md").read_text()
    for (planner, network), rows in record.groupby(["planner", "network"], sort=False):
        theirs, ours = rows["fastest_s"]
        took = f"{sentences.exact(theirs)}|{sentences.exact(ours)}|{theirs / ours:.2f}"
        assert f"|`{planner}`, `{network}`|{took}|\n" in page


def claims_of(view: str) -> pd.DataFrame:
    return read_table(ROOT / "figures" / "records" / f"{view}.csv", schemas.CLAIMS)


def test_readme_and_summary_repeat_how_many_numbers_hold() -> None:
    counts = [
        (len(found), (found["status"] == "reproduced").sum())
        for found in map(verdicts.measured, map(claims_of, ("claims", "claims_step")))
    ]
    (window, held), (step, held_there) = counts
    said = f"On the H100, {held} of the {window} numbers measured in the paper's window are reproduced, "
    assert f"{said}and {held_there} of the {step} measured over a whole step " in page_text("README.md")
    lead = " ".join(nbformat.read(ROOT / "notebooks" / "00_summary.ipynb", as_version=4).cells[0].source.split())
    assert window == step
    assert f"{held} of the {window} numbers measured on an H100 are reproduced; " in lead
    assert f"over a whole step, whose means weight launches by time, {held_there}. " in lead


def test_readme_repeats_on_how_many_metrics_fast_is_equivalent() -> None:
    quality = parity.recorded(ROOT, "H200").quality
    of_each = (parity.parity(quality[quality["setting"] != "BASE"], plan=plan) for plan in ("offset", "short"))
    (held, metrics), (fewer, _) = ((table["equivalent"].sum(), len(table)) for table in of_each)
    said = f"under FAST and TF32 on {held} of {metrics} quality metrics; with the published noise, on {fewer}."
    assert said in page_text("README.md")


def test_the_policy_page_repeats_what_the_paper_s_own_card_changed() -> None:
    tables_of = {view: claims_of(view).set_index("id") for view in ("claims", "claims_step")}
    counts = [table["status"].value_counts() for table in tables_of.values()]
    page = page_text("site/policy.md")
    window, step = counts
    said = f"{window['reproduced']} of {window.sum()} are reproduced, {window['differs']} differ, and "
    assert f"{said}{window['checked_against_source']} are checked against a source." in page
    assert f"now {step['reproduced']} of {step.sum()} are reproduced and {step['differs']} differ." in page
    row = r"^\| (\w+) \| (P\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\w+) \|"
    rows = re.findall(row, (ROOT / "site" / "policy.md").read_text(), re.MULTILINE)
    assert len(rows) == 12
    for view, claim, paper, _, now, verdict in rows:
        found = tables_of["claims" if view == "window" else "claims_step"].loc[claim]
        places = len(now.partition(".")[2])
        assert (found["status"], f"{float(found['our_value']):.{places}f}") == (verdict, now), claim
        assert float(found["paper_value"]) == float(paper)


def test_readme_repeats_what_channels_last_costs() -> None:
    kernels = kernel_tables.kernels(ROOT)
    of_run = kernel_tables.each_run(kernels, lambda table: summaries.relative(summaries.summary(table)))
    means = kernel_tables.over_runs(of_run)["cycles"].loc["H100"]
    ratio = [f"{means[view, 'OPT2']:.2f}" for view in ("window", "step")]  # the claims' four digits round otherwise
    said = "takes {} times the baseline's cycles in the paper's window and {} times in a whole training step"
    assert said.format(*ratio) in page_text("README.md")


def test_readme_repeats_what_other_windows_show() -> None:
    starts = [f"window-{start}" for start in (0, 160, 300, 640)]
    kernels = kernel_tables.kernels(ROOT, ("window", "step", *starts))
    kernels, launches = kernels[kernels["gpu"] == "H100"], kernel_tables.launches(ROOT, "H100")
    costs = {name: windows.costs(launches[name], kernels[kernels["config"] == name]) for name in ("BASE", "OPT2")}
    cycles = windows.from_every_start(costs["OPT2"], costs["BASE"])["cycles_active"]
    said = f"from {1 / cycles.min():.0f} times fewer cycles than the baseline to {cycles.max():.0f} times as many. "
    assert said in page_text("README.md")
    least, most = (windows.profiled(kernels, "OPT2", "BASE").agg(how) for how in ("min", "max"))
    said = f"from {1 / least['cycles_active']:.0f} times fewer to {most['cycles_active']:.0f} times as many."
    assert f"Five windows profiled as a whole show {said}" in page_text("README.md")


def test_a_page_lists_every_notebook_and_contributing_every_folder() -> None:
    listed = re.findall(r"\(\.\./notebooks/(\w+)\.ipynb\) \|", (ROOT / "site" / "reading.md").read_text())
    assert listed == [path.stem for path in NOTEBOOKS if path.stem != "00_summary"]
    text = (ROOT / "CONTRIBUTING.md").read_text()
    wings = (ROOT / "medddpm", ROOT / "study")
    folders = [
        path.parent.name
        for wing in wings
        for path in sorted(wing.glob("*/__init__.py"))
        if path.parent.name != "clients"
    ]  # which answers for a former place
    assert [name for name in folders if f"{name}/`" not in text] == []


def test_setup_takes_the_newest_python_that_fits() -> None:
    """The Makefile's test of an interpreter holds for the one that runs these tests, and agrees with pyproject.toml."""
    fits = re.search(r"^FITS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert fits
    assert subprocess.run([sys.executable, "-c", fits.group(1)]).returncode == 0
    lowest = re.search(r"not \((\d+), (\d+)\) <=", fits.group(1))
    assert lowest
    assert SpecifierSet(f">={'.'.join(lowest.groups())}") == SpecifierSet(PROJECT["requires-python"])
