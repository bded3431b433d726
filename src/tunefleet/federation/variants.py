"""What of a PEFT config is understood; every other variant of LoRA is refused by name, never guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from tunefleet.errors import AdapterRefused, printable

# Keys that a published config has; they say what the tensors mean, or which modules have some.
CARRIED: Final = (
    "peft_type",
    "task_type",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "peft_version",
    "r",
    "lora_alpha",
    "lora_dropout",
    "use_rslora",
    "bias",
    "fan_in_fan_out",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "init_lora_weights",
)
# Keys that say nothing about the values: they steer how an adapter begins, or accompany another key.
_IGNORED: Final = frozenset(
    {"auto_mapping", "runtime_config", "qalora_group_size", "loftq_config", "eva_config", "corda_config"}
    | {"lora_ga_config", "megatron_core"}
)
_REFUSED: Final[Mapping[str, str]] = {
    "use_dora": "DoRA: its magnitudes are not part of the product B · A",
    "use_qalora": "QA-LoRA: its A works on pooled inputs",
    "lora_bias": "a bias on lora_B",
    "velora_config": "VeLoRA",
    "alora_invocation_tokens": "activated LoRA",
    "monteclora_config": "MonteCLoRA",
    "target_parameters": "LoRA on bare parameters, such as stacked experts",
    "trainable_token_indices": "trainable tokens",
    "use_bdlora": "block-diagonal LoRA",
    "arrow_config": "Arrow routing",
    "kasa_config": "KaSA",
    "megatron_config": "Megatron's parallel layers",
    "layer_replication": "replicated layers",
    "ensure_weight_tying": "tied layers, which an average of each by itself would untie",
}
_INITS: Final = frozenset({"gaussian", "orthogonal", "eva"})
_PATTERN: Final = re.compile(r"\^?[A-Za-z0-9_.]{1,256}")
_MAX_PATTERNS: Final = 4096
"""Each is tried on each module."""


def check_variant(raw: Mapping[str, Any]) -> None:
    """Refuse a config that means something else than W + scale · B · A with plain A and B.

    Args:
        raw: The config as PEFT saved it.

    Raises:
        AdapterRefused: With the name of the variant, or of the key that is not known.
    """
    kind = raw.get("peft_type")
    if kind != "LORA":
        raise AdapterRefused(f"The adapter's peft_type is {_shown(kind)}; only LORA can be averaged.")
    for key, name in _REFUSED.items():
        if raw.get(key):
            raise AdapterRefused(
                f"The adapter uses {name} ({key}); it cannot be averaged yet.", hint=f"Train without {key}."
            )
    bias = raw.get("bias", "none")
    if bias not in (None, "none"):
        raise AdapterRefused(
            f"The adapter trains biases (bias is {_shown(bias)}); they cannot be averaged.",
            hint="Train with bias: none, or list the layers in modules_to_save.",
        )
    _check_init(raw.get("init_lora_weights", True))
    strange = next((key for key in raw if key not in CARRIED and key not in _IGNORED and raw[key]), None)
    if strange is not None and strange not in _REFUSED:
        raise AdapterRefused(
            f"The adapter's config has {_shown(strange)}, which this version of Tunefleet does not know.",
            hint="What it changes cannot be averaged safely; train without it.",
        )


def _check_init(init: Any) -> None:
    if isinstance(init, bool) or init is None or (isinstance(init, str) and init in _INITS):
        return
    raise AdapterRefused(
        f"The adapter began with init_lora_weights {_shown(init)}, which changes the base model below it.",
        hint="Save it as a plain one (path_initial_model_for_weight_conversion), or train without it.",
    )


def check_pattern(key: str, names: Mapping[str, Any]) -> None:
    """Refuse patterns that are more than parts of a module's name: they would be run as regular expressions.

    Args:
        key: `rank_pattern` or `alpha_pattern`.

    Raises:
        AdapterRefused: With the pattern, or if there are too many.
    """
    if len(names) > _MAX_PATTERNS:
        raise AdapterRefused(
            f"{key} has {len(names):,} patterns; at most {_MAX_PATTERNS:,} are read.",
            hint="Name several modules by the end that they have in common.",
        )
    for name in names:
        if not _PATTERN.fullmatch(name):
            raise AdapterRefused(
                f"{key} has the pattern {_shown(name)}; only names of modules are understood.",
                hint="Write letters, digits, _ and dots.",
            )


def matching(names: Mapping[str, Any], module: str) -> str | None:
    """Return the first name of a pattern that means a module, by PEFT's rule; null if none does.

    Source: `peft.utils.other.get_pattern_key`.
    """
    return next((name for name in names if _compiled(name).match(module)), None)


@lru_cache(_MAX_PATTERNS)
def _compiled(name: str) -> re.Pattern[str]:
    # A rank for each module is more patterns than `re` keeps: it would compile each of them for each module.
    return re.compile(rf"(.*\.)?({name})$")


def _shown(value: Any) -> str:
    return repr(printable(str(value)[:200]))
