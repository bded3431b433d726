"""Supported PEFT configs; every other variant of LoRA is refused by name, never guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from tunefleet.errors import AdapterRefused, printable

# Keys of a published config: they define the meaning of the tensors, or the modules that have some.
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
# Keys without influence on the values: they control the initialization, or accompany another key.
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
    "ensure_weight_tying": "tied layers, which averaging them separately would untie",
}
_INITS: Final = frozenset({"gaussian", "orthogonal", "eva"})
_PATTERN: Final = re.compile(r"\^?[A-Za-z0-9_.]{1,256}")
_MAX_PATTERNS: Final = 4096
"""Limit, because each pattern is matched against each module."""


def check_variant(raw: Mapping[str, Any]) -> None:
    """Refuse a config with another meaning than W + scale · B · A with plain A and B.

    Args:
        raw: The config as PEFT saved it.

    Raises:
        AdapterRefused: With the name of the variant or of the unknown key.
    """
    kind = raw.get("peft_type")
    if kind != "LORA":
        raise AdapterRefused(f"The adapter's peft_type is {_shown(kind)}; only LORA can be averaged.")
    for key, name in _REFUSED.items():
        if raw.get(key):
            raise AdapterRefused(
                f"The adapter uses {name} ({key}), which cannot be averaged yet.", hint=f"Train without {key}."
            )
    bias = raw.get("bias", "none")
    if bias not in (None, "none"):
        raise AdapterRefused(
            f"The adapter trains biases (bias is {_shown(bias)}), which cannot be averaged.",
            hint="Train with bias: none, or list the layers in modules_to_save.",
        )
    _check_init(raw.get("init_lora_weights", True))
    strange = next((key for key in raw if key not in CARRIED and key not in _IGNORED and raw[key]), None)
    if strange is not None and strange not in _REFUSED:
        raise AdapterRefused(
            f"The adapter's config has the unknown key {_shown(strange)}.",
            hint="Adapters with unknown options cannot be averaged safely. Train without it.",
        )


def _check_init(init: Any) -> None:
    if isinstance(init, bool) or init is None or (isinstance(init, str) and init in _INITS):
        return
    raise AdapterRefused(
        f"The adapter was initialized with init_lora_weights {_shown(init)}, which changes the base model.",
        hint="Save it as a plain adapter (path_initial_model_for_weight_conversion), or train without it.",
    )


def check_pattern(key: str, names: Mapping[str, Any]) -> None:
    """Refuse patterns other than parts of module names: PEFT would run them as regular expressions.

    Args:
        key: `rank_pattern` or `alpha_pattern`.

    Raises:
        AdapterRefused: With the pattern, or if there are too many.
    """
    if len(names) > _MAX_PATTERNS:
        raise AdapterRefused(
            f"{key} has {len(names):,} patterns; the limit is {_MAX_PATTERNS:,}.",
            hint="Match several modules by their common suffix.",
        )
    for name in names:
        if not _PATTERN.fullmatch(name):
            raise AdapterRefused(
                f"{key} has the pattern {_shown(name)}; only module names are supported.",
                hint="Use letters, digits, _ and dots.",
            )


def matching(names: Mapping[str, Any], module: str) -> str | None:
    """Return the first pattern that matches a module, by PEFT's rule; `None` if none does.

    Source: `peft.utils.other.get_pattern_key`.
    """
    return next((name for name in names if _compiled(name).match(module)), None)


@lru_cache(_MAX_PATTERNS)
def _compiled(name: str) -> re.Pattern[str]:
    # With a rank per module there are more patterns than `re` caches: it would compile each one for each module.
    return re.compile(rf"(.*\.)?({name})$")


def _shown(value: Any) -> str:
    return repr(printable(str(value)[:200]))
