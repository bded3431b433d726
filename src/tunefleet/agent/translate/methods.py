"""`config.training.method`: methods that a config supports, and alternatives for the others."""

from __future__ import annotations

from typing import Final

from tunefleet.agent.translate.config_reader import ConfigReader

# Methods with preference pairs; their task kinds have the same names.
PAIRS: Final = frozenset({"dpo", "orpo"})
_SUPERVISED: Final = frozenset({"sft", "cpt"})
_NEEDS_REWARD_MODEL: Final = "needs a reward model, which a config cannot set"
_NEEDS_REWARDS: Final = "needs rewards or a reward model, which a config cannot set"
# Method -> why a config does not support it, and the task kinds that do.
_UNSUPPORTED: Final = {
    "rlhf": (_NEEDS_REWARD_MODEL, "ppo or grpo"),
    "ppo": (_NEEDS_REWARD_MODEL, "ppo"),
    "grpo": (_NEEDS_REWARDS, "grpo"),
    "rloo": (_NEEDS_REWARDS, "rloo"),
    "kto": ("needs a label column for single answers, which a config cannot set", "kto"),
    "reward": ("trains a reward model, which a config does not support", "reward"),
}


def method(read: ConfigReader) -> str:
    """Return the method, `sft` by default; an unsupported one is recorded as an error."""
    name = str(read.take("training.method", "method") or "sft").lower()
    if name in _UNSUPPORTED:
        why, kinds = _UNSUPPORTED[name]
        hint = f"submit a task of kind {kinds} to a server with a worker, see docs/how-to/preference-tuning.md"
        read.fault("training.method", f"{name!r} {why}", hint)
    elif name not in _SUPERVISED | PAIRS:
        read.fault("training.method", f"{name!r:.40} is not known", "use sft, cpt, dpo or orpo")
    return name


def kind_of(method: str, *, lora: bool) -> str:
    """Return the task kind of a method; preference methods have the same kind with and without an adapter."""
    if method in PAIRS:
        return method
    return "lora_sft" if lora else "sft"
