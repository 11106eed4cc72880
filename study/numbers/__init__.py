"""The numbers of README, of the site's pages and of the summary: one function each, which `markers` calls.

A page has `<!--=bench.step_ms(H100, med-ddpm, FAST)-->41.4<!--=-->`: the function `step_ms` of `study/numbers/bench.py`
writes what stands between the markers, and a page shows that text alone. A function takes the repository's root and
the marker's arguments as strings; it returns a text, or a table's rows as a list.
"""
