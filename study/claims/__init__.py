"""The paper's numbers, the rules that judge each, and the verdicts."""
