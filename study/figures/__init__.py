"""Every figure: a table in, a matplotlib figure out."""
