"""The kernel that `make lab` starts: IPython's, by the language that the committed notebooks name."""

from ipykernel.ipkernel import IPythonKernel

from study.book import LANGUAGE


class BookKernel(IPythonKernel):
    """Names no version of Python: JupyterLab writes it into a notebook that it opens, and would call it changed."""

    language_info = LANGUAGE
