"""Settings specific to `dpo` and `orpo`: beta and other parameters, and the columns of prompt and answers."""

from __future__ import annotations

from typing import Any, Final

from tunefleet.agent.translate.config_reader import ConfigReader

# Names of the preference format: the columns `prompt`, `chosen` and `rejected`.
FORMATS: Final = frozenset({"dpo", "orpo", "preference", "preferences", "pairs", "chosen_rejected"})
OF_DPO: Final = ("training.loss_type", "training.label_smoothing", "training.precompute_ref_log_probs")
OF_PAIRS: Final = ("training.beta", "training.max_prompt_length")
_COLUMNS: Final = ("prompt", "chosen", "rejected")
CHOSEN: Final = ("data.chosen_column", "data.chosen_field", "data.rejected_column", "data.rejected_field")
_OF_OTHERS: Final = ("data.text_field", "data.text_column", "data.response_column", "data.messages_field")
# Key -> the value that has no effect, and so needs no warning.
_SUPERVISED_ONLY: Final[tuple[tuple[str, Any], ...]] = (
    ("training.packing", False),
    ("training.neftune_noise_alpha", False),
    ("training.use_liger_kernel", False),
    ("training.completion_only_loss", True),
    ("training.early_stopping_patience", False),
)


def training(read: ConfigReader, method: str) -> None:
    """Translate the keys of the method, and warn about those that only apply to supervised training."""
    for path in (*OF_PAIRS, *(OF_DPO if method == "dpo" else ())):
        read.move(path, path)
    for path, harmless in _SUPERVISED_ONLY:
        if read.take(path) not in (None, harmless):
            read.warn(path, f"has no effect with the method {method}")
    read.take("training.early_stopping_threshold")


def columns(read: ConfigReader, method: str, form: Any, file_formats: frozenset[str]) -> None:
    """Translate the columns."""
    for name in _COLUMNS:
        read.move(f"data.{name}_column", f"data.{name}_column", f"data.{name}_field")
    read.move("data.separator", "data.separator")
    if form is not None and str(form).lower() not in FORMATS | file_formats:
        read.warnings.append(
            f"config.data.dataset_format {form!r} is not a preference format: {method} reads the columns prompt, "
            "chosen and rejected, or those set in data.prompt_column, chosen_column and rejected_column."
        )
    read.ignore(*_OF_OTHERS, why="belongs to another training method and has no effect")
