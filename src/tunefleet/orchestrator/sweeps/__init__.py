"""Hyperparameter sweeps: trials are runs, Optuna chooses their values and which ones stop early."""
