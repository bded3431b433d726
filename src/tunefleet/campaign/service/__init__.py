"""Campaigns: continuous training in cycles, and the registry of the models that they make.

    service ───▶ repository ◀───── the engine (`tunefleet.campaign`)
    (users)      (durable state: cycles, steps, spend, log)
                  │
                  ▼
                model registry (versions, and which one is promoted)

This package only stores: it makes no decisions about data, providers or models, and no outgoing calls. The engine acts,
and records each intent and outcome in the repository.
"""
