"""Weights & Biases, MLflow, Trackio and others behind one small interface, each in a separate process.

    delivery ─JSON──▶ child ──▶ tracker (on_wandb, on_mlflow, on_trackio, or one of a package)
       ▲                │
       ╰── URL of the run, or an error

A tracker's library starts threads and processes, patches signals and may hang: it is imported only in the child
process, which lives for one run and is killed when it takes too long. Knows runs, not campaigns: content and retries
are up to the caller.
"""
