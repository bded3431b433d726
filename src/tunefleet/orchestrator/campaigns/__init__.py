"""Campaigns: training that goes on by itself, cycle by cycle, and the models that come of it.

    jobs ─────▶ book ◀───── the engine (`tunefleet.campaign`)
    (people)    (what is durable: cycles, steps, spend, log)
                  │
                  ▼
                registry (versions of models, and which one is promoted)

What is here stores, decides nothing about data, providers or models, and calls nobody: the engine acts, and tells the
book what it is about to do, and what became of it.
"""
