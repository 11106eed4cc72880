"""What a run tells while it trains: its progress, its losses and whether it is lost, its pace and where it waits."""
