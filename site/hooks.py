"""What a page of the site has beyond its source: folded code, alt texts, anchors, links, data, formulas."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import citation
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

ROOT = Path(__file__).resolve().parents[1]
ESSAY, CLAIMS = "notebooks/00_summary", "notebooks/24_all_verdicts"
CLAIM = re.compile(r"\bP\d{3}\b")
LINKED_CLAIM = re.compile(r"\[(P\d{3})\]\((?:24_all_verdicts\.ipynb)?#\1\)")  # for JupyterLab; here `Claims` links them
SAVED = re.compile(r"save_figure\(.*?\"(\w+)\"", re.DOTALL)
PICTURE = re.compile(r"<img [^>]*>")
PHONE = "(max-width: 600px)"  # as in static/
LETTER = 1.3  # pixels a point: the smallest letters of figures have 7 points, which then are 9 pixels
NOTEBOOK = re.compile(r"\d\d_\w+")
CONTENTS = """

```{{toctree}}
:caption: The book
:hidden:

{notebooks}
```

```{{toctree}}
:caption: Using it
:hidden:

site/fast_path
site/compare
site/profile_yours
site/contract
site/clients
site/commands
site/python
medddpm/README
site/run
site/add_your_card
```

```{{toctree}}
:caption: Reference
:hidden:

site/reading
site/glossary
site/policy
site/artifact
site/card_tests
site/cite
CONTRIBUTING
CHANGELOG
```
"""


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the hooks."""
    app.connect("source-read", complete_source)
    app.connect("html-page-context", complete_page)
    app.connect("build-finished", copy_data)
    app.add_post_transform(Claims)
    app.add_html_math_renderer("mathml", (inline_formula, None), (formula, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def complete_source(app: Sphinx, docname: str, source: list[str]) -> None:
    """Gives README the table of contents, a notebook its folded code and its data, and the citation page BibTeX."""
    if docname == app.config.root_doc:
        names = sorted(name for name in app.env.found_docs if name.startswith("notebooks/"))
        source[0] += CONTENTS.format(notebooks="\n".join(names))
    elif docname.startswith("notebooks/"):
        source[0] = complete_notebook(source[0], Path(docname).name)
    elif docname == "site/cite":
        source[0] += "\n".join(f"\n## {title}\n\n```bibtex\n{entry}\n```" for title, entry in citation.entries(ROOT))


def complete_notebook(text: str, name: str) -> str:
    """Returns the notebook with a text for each picture, links to its figures and their data, and its code folded.

    A cell tagged `show-input` stays open: a group-by or a plot that a reader may want to change. One tagged
    `hide-cell`, which answers an exercise, is folded with what it printed. One tagged `checks`, which holds the text to
    its numbers, is left out.
    """
    notebook = json.loads(text)
    notebook["metadata"]["kernelspec"]["name"] = "python3"
    heading = name
    cells: list[dict[str, Any]] = []
    for cell in notebook["cells"]:
        body = "".join(cell["source"])
        if "checks" in cell["metadata"].get("tags", []):
            continue
        if cell["cell_type"] == "markdown":
            cell["source"] = body = LINKED_CLAIM.sub(r"\1", body)
            found = re.findall(r"^#+ (.+)$", body, re.MULTILINE)
            heading = found[-1] if found else heading
        else:
            if cells and cells[-1]["cell_type"] == "code" and not cells[-1]["outputs"]:
                body = f"{''.join(cells.pop()['source'])}\n\n{body}"  # one fold for cells that follow each other
                cell["source"] = body
            tags = cell["metadata"].setdefault("tags", [])
            if "show-input" not in tags:
                tags.append("hide-input")
            saved = SAVED.findall(body)
            said = [o["metadata"].get("image/png", {}).get("alt") for o in cell["outputs"] if o.get("metadata")]
            if "hide-cell" in tags:
                prompts = {"code_prompt_show": "Show the answer", "code_prompt_hide": "Hide the answer"}
                cell["metadata"].setdefault("mystnb", {}).update(prompts)
            picture = cell["metadata"].setdefault("mystnb", {}).setdefault("image", {})
            alt = next(filter(None, said), f"{heading.strip()}: figure {' and '.join(saved) or name}")
            picture.setdefault("alt", alt)
            if len(saved) == 1:
                picture["classes"] = f"drawing-{saved[0]}"  # by which its SVG is found
        cells.append(cell)
    figures = [f for c in cells if c["cell_type"] == "code" for f in SAVED.findall("".join(c["source"]))]
    cells.append({"cell_type": "markdown", "metadata": {}, "source": data_section(name, figures, notebook["metadata"])})
    for number, cell in enumerate(cells):
        cell.setdefault("id", f"cell-{number}")
    return json.dumps(notebook | {"cells": cells})


def data_section(name: str, figures: Iterable[str], metadata: dict[str, Any]) -> str:
    """Markdown that offers the notebook, its figures, and the tables that they are drawn from."""
    declared = metadata.get("medddpm", {})
    tables = sorted({p for pattern in declared.get("inputs", ()) for p in ROOT.glob(pattern) if p.is_file()})
    drawn = [ROOT / "figures" / f"{figure}.{kind}" for figure in figures for kind in ("png", "svg")]
    tables = [path for path in tables if path.is_relative_to(ROOT / "figures")]  # of what is published
    lines = [f'<li><a href="{name}.ipynb" download>{name}.ipynb</a>, this notebook</li>']
    for path in [*(p for p in drawn if p.is_file()), *tables]:
        place = path.relative_to(ROOT).as_posix()
        lines.append(f'<li><a href="../{place}" download>{place.removeprefix("figures/")}</a></li>')
    listed = "\n".join(lines)
    summary = f"{len(lines)} files: the notebook, its figures, and the tables that they are drawn from"
    return f"## Downloads\n\n<details><summary>{summary}</summary>\n<ul>\n{listed}\n</ul>\n</details>"


class Claims(SphinxPostTransform):
    """Links each claim's number to its row in the audit, and each notebook's name to the notebook."""

    default_priority = 800

    def run(self, **_: Any) -> None:
        """Changes the document in place."""
        for text in list(self.document.findall(nodes.Text)):
            kinds = [type(a) for a in _above(text)]
            if nodes.literal in kinds and NOTEBOOK.fullmatch(str(text)) and nodes.reference not in kinds:
                docname = f"notebooks/{text}"
                if docname in self.env.found_docs and docname != self.env.docname:
                    target = self.app.builder.get_relative_uri(self.env.docname, docname)
                    literal = text.parent
                    literal.parent.replace(literal, nodes.reference("", "", literal.deepcopy(), refuri=target))
            elif not {nodes.literal, nodes.literal_block, nodes.reference, nodes.title, nodes.raw} & set(kinds):
                self._link_claims(text)

    def _link_claims(self, text: nodes.Text) -> None:
        parts: list[nodes.Node] = []
        end = 0
        page = self.app.builder.get_relative_uri(self.env.docname, CLAIMS).partition("#")[0]
        for found in CLAIM.finditer(str(text)):
            parts.append(nodes.Text(text[end : found.start()]))
            parts.append(nodes.reference("", found[0], refuri=f"{page}#{found[0]}"))
            end = found.end()
        if parts:
            text.parent.replace(text, [*parts, nodes.Text(text[end:])])


def _above(node: nodes.Node) -> Iterable[nodes.Node]:
    while node.parent is not None:
        node = node.parent
        yield node


def complete_page(app: Sphinx, pagename: str, _template: str, context: dict[str, Any], _tree: object) -> None:
    """Lets the keyboard scroll wide tables, gives frames a title, and has figures lead to their drawings."""
    if pagename == ESSAY:
        app.add_js_file("moved.js")
    body = context.get("body", "")
    body = re.sub(r"<table(?=[ >])(?! style)", '<table tabindex="0"', body)
    body = re.sub(r"<th[^>]*></th>", "<td></td>", body)  # the corner of a table of pandas heads nothing
    body = re.sub(r"<iframe(?![^>]* title=)", '<iframe title="viewer of a volume"', body)
    context["body"] = PICTURE.sub(linked, body)


def linked(picture: re.Match[str]) -> str:
    """A picture of a figure as a link to its SVG, which static/figures.js opens in place."""
    tag = picture[0]
    named = re.search(r"class=\"[^\"]*drawing-(\w+)|src=\"(?:\.\./)*(?:_images|figures)/(\w+)\.png\"", tag)
    name = named and (named[1] or named[2])
    drawing = ROOT / "figures" / f"{name}.svg"
    if not drawing.is_file():
        return tag
    top = re.search(r'src="((?:\.\./)*)', tag)
    text = drawing.read_text(encoding="utf-8")
    kind = "figure marked" if text.count("<title>") > 1 else "figure"  # one is the figure's own
    folder = f"{top[1] if top else ''}figures"
    points = re.search(r'viewBox="0 0 ([\d.]+)', text)
    more = f' style="--legible: {LETTER * float(points[1]):.0f}px"' if points else ""
    if drawing.with_suffix(".narrow.svg").is_file():
        narrow = f"{folder}/{name}.narrow.svg"
        tag = f'<picture><source media="{PHONE}" srcset="{narrow}">{tag}</picture>'
        more = f' data-narrow="{narrow}"'
    return f'<a class="{kind}" href="{folder}/{name}.svg" title="enlarge"{more}>{tag}</a>'


def copy_data(app: Sphinx, error: Exception | None) -> None:
    """Puts the figures, their tables and the notebooks beside the pages."""
    if error is None and app.builder.format == "html":
        shutil.copytree(ROOT / "figures", Path(app.outdir) / "figures", dirs_exist_ok=True)
        for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"):
            shutil.copy(path, Path(app.outdir) / "notebooks")


def inline_formula(translator: Any, node: nodes.math) -> None:
    """Writes a formula as MathML, which browsers draw by themselves."""
    translator.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def formula(translator: Any, node: nodes.math_block) -> None:
    """The same of a formula on lines of its own."""
    translator.body.append(f'<div class="math">{tex2mathml(html.unescape(node.astext()), as_block=True)}</div>')
    raise nodes.SkipNode
