"""The study: it measures the model, keeps what it measured as records, and draws the figures from them."""
