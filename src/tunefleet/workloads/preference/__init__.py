"""Preference optimization (`dpo`, `kto`, `orpo`, `reward`) and reward-based training (`grpo`, `rloo`).

    run               the run from start to end, its result
    method            base class of the methods, reference model
    preference_rows   reading of rows
    tokenization      rows → tokens
    evaluation        exact metrics of eval rows
    dpo               dpo, orpo and reward
    kto               kto
    orpo              ORPO's loss
    grpo              grpo and rloo
    reward_functions  rule-based rewards

`job.json` names it `tunefleet.workloads.preference:main`. Code shared with other training tasks is in `training`;
rewards by a model are in `ppo.reward_model`.
"""

from __future__ import annotations

from tunefleet.workloads.preference.run import run as main

__all__ = ["main"]
