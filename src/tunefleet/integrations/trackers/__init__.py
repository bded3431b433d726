"""Weights & Biases, MLflow, Trackio and others behind one small interface, each in a process of its own.

    courier ──JSON──▶ child ──▶ tracker (on_wandb, on_mlflow, on_trackio, or one that a package brings)
       ▲                │
       ╰── where it is, or why not

A tracker's library starts threads and processes, patches signals and may hang: it is imported in the child only, which
lives for one run and is ended when it takes too long. Knows runs, not campaigns: what a run says is the caller's
business, and so is trying again.
"""
