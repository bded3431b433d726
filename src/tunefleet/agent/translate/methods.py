"""`config.training.method`: which methods a config can train, and where the others are trained."""

from __future__ import annotations

from typing import Final

from tunefleet.agent.translate.config_reader import Reading

# Methods that learn from a better and a worse answer; their task kind is called as they are.
PAIRS: Final = frozenset({"dpo", "orpo"})
_SUPERVISED: Final = frozenset({"sft", "cpt"})
_WITH_JUDGE: Final = "needs a reward model, and a config has no place for one"
_WITH_REWARDS: Final = "needs rewards or a reward model, and a config has no place for them"
_ELSEWHERE: Final = {
    "rlhf": (_WITH_JUDGE, "ppo or grpo"),
    "ppo": (_WITH_JUDGE, "ppo"),
    "grpo": (_WITH_REWARDS, "grpo"),
    "rloo": (_WITH_REWARDS, "rloo"),
    "kto": ("learns from single answers that are good or bad, and a config cannot say which column tells", "kto"),
    "reward": ("trains a judge of answers, which is no method of a config", "reward"),
}
"""Method → why it is not trained from a config, and the kinds of task that do it."""


def method(read: Reading) -> str:
    """Use the method; the default is `sft`. One that cannot be is noted as a fault."""
    found = str(read.take("training.method", "method") or "sft").lower()
    if found in _ELSEWHERE:
        why, kinds = _ELSEWHERE[found]
        hint = f"submit a task of kind {kinds} to a server with a worker, as docs/how-to/align-a-model.md shows"
        read.fault("training.method", f"{found!r} {why}", hint)
    elif found not in _SUPERVISED | PAIRS:
        read.fault("training.method", f"{found!r:.40} is not known", "use sft, cpt, dpo or orpo")
    return found


def kind_of(method: str, *, lora: bool) -> str:
    """Return the task kind of a method; a training on pairs is of the same kind with an adapter."""
    if method in PAIRS:
        return method
    return "lora_sft" if lora else "sft"
