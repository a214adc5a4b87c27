"""From what an experiment's data functions return to batches for the steps."""
