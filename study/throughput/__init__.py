"""The levers of training throughput, each a row: its gain, its cost, and the expected gain."""
