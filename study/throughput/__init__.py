"""The levers of training throughput, each a row: what it gives, what it costs, and what was expected of it."""
