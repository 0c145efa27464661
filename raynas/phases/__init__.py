"""What is done to a run: train, search, retrain, evaluate, rank, export, import, report."""
