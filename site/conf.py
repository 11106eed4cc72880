"""The book's site: the committed notebooks as they were executed, README, CONTRIBUTING and the pages in site/.

`make site` builds it offline into build/site. Sources lie where a reader of the repository has them, so that a link
between two files is the same link in JupyterLab, on a code host and here; what else a page needs is added by hooks.py.
"""

import os
import sys
from pathlib import Path

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))

project = CITATION["title"]
author = ", ".join(person["name"] for person in CITATION["authors"])
release = CITATION["version"]
project_copyright = author

extensions = ["myst_nb", "hooks"]
root_doc = "README"
TOP = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "medddpm/README.md"]
include_patterns = [*TOP, "notebooks/[0-9][0-9]_*.ipynb", "site/*.md"]
exclude_patterns = [".*", "build", "runs"]  # else Sphinx walks, twice, through the whole environment in .venv
nb_execution_mode = "off"  # what is committed is shown
nb_merge_streams = True
nb_render_markdown_format = "myst"
nb_number_source_lines = False
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
suppress_warnings = [
    "mystnb.unknown_mime_type",  # the viewer's
    "myst.header",  # a notebook's finding may stand above its first heading
]

html_theme = "sphinx_book_theme"
html_title = project
html_baseurl = os.environ.get("BOOK_URL", "")
html_extra_path = ["extra", "../environment.yml", "../requirements.lock"]  # 24_all_verdicts links these two
html_static_path = ["static"]
html_css_files = ["book.css"]
html_js_files = [("figures.js", {"defer": "defer"})]
html_search_scorer = str(HERE / "scorer.js")
html_copy_source = False
html_show_sourcelink = False
html_math_renderer = "mathml"
REPOSITORY = os.environ.get("BOOK_REPOSITORY", "")  # https://HOST/OWNER/NAME, which the workflow that publishes knows
html_theme_options = {
    "use_download_button": False,  # a page offers its notebook and its data itself
    "show_toc_level": 2,
    "logo": {"link": "notebooks/00_summary"},
    "navbar_persistent": [],  # the sidebar has the search
    "secondary_sidebar_items": {"**": ["page-toc.html"], "README": []},  # README is short, and its pictures are wide
    "use_repository_button": bool(REPOSITORY),
    "repository_url": REPOSITORY,
    "repository_branch": os.environ.get("BOOK_BRANCH", "main"),
    "launch_buttons": {
        "notebook_interface": "jupyterlab",
        "binderhub_url": "https://mybinder.org",
        "colab_url": "https://colab.research.google.com",
    }
    if REPOSITORY
    else {},
}
