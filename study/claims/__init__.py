"""The paper's numbers, a function that judges each, and the verdicts."""
