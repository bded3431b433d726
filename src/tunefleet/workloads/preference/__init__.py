"""Trainings on preferences (`dpo`, `kto`, `orpo`, `reward`) and on rewards (`grpo`, `rloo`).

    run               the run from beginning to end
    method            what a kind brings to it
    data              what is in a row
    tokenization      rows → tokens
    evaluation        exact measures of held-out rows
    result            what a run reports
    dpo               dpo, orpo and reward
    kto               kto
    orpo              ORPO's loss
    grpo              grpo and rloo
    reward_functions  rewards by rules
    reference_model   what the model is held to

`job.json` names it `tunefleet.workloads.preference:main`. What it shares with other trainings is in `training`; rewards
by a model are in `ppo.reward_model`.
"""

from __future__ import annotations

from tunefleet.workloads.preference.run import run as main

__all__ = ["main"]
