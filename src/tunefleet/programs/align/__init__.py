"""Trainings on preferences (`dpo`, `kto`, `orpo`, `reward`) and on rewards (`grpo`, `rloo`).

    recipe    the run from beginning to end     method     what a kind brings to it
    rows      what is in a row                  encoding   rows → tokens
    held_out  exact measures of held-out rows   result     what a run reports
    pairs     dpo, orpo and reward              judged     kto
    odds      ORPO's loss                       groups     grpo and rloo
    rewards   rewards by rules                  reference  what the model is held to

`job.json` names it `tunefleet.programs.align:main`. What it shares with other trainings is in `train`; rewards by a
model are in `ppo.judge`.
"""

from __future__ import annotations

from tunefleet.programs.align.recipe import run as main

__all__ = ["main"]
