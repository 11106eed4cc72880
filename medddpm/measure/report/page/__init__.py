"""`medddpm report`: profiles as one page that needs nothing else."""
