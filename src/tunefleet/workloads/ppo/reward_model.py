"""Reward models: sequence classifiers that score a prompt and its answer together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import torch
from peft import AutoPeftModelForSequenceClassification
from safetensors import SafetensorError
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from tunefleet.artifacts.archive import unpacked_path
from tunefleet.errors import InputError, ModelError
from tunefleet.spec import RewardModelSpec
from tunefleet.workloads.common import base_model, containment
from tunefleet.workloads.common.answer_extraction import ending

_GOOD: Final = ("positive", "pos", "good", "chosen", "helpful", "preferred")
_ADAPTER: Final = "adapter_config.json"
_BAD: Final = ("negative", "neg", "bad", "rejected", "unhelpful")


class RewardModel:
    """A reward model loaded on a device."""

    def __init__(
        self, wanted: RewardModelSpec, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, device: torch.device
    ) -> None:
        self.model = model.to(device).eval().requires_grad_(False)
        self._wanted = wanted
        self._tokenizer = tokenizer
        self._device = device
        context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._longest = min(wanted.max_length, context) if isinstance(context, int) else wanted.max_length
        self.labels = labels_of(wanted, {int(index): str(name) for index, name in model.config.id2label.items()})

    @torch.no_grad()
    def scores(self, texts: Sequence[str], batch: int) -> torch.Tensor:
        """Return a reward for each text; texts that are too long are truncated on the left.

        Raises:
            InputError: If a reward is NaN or infinite.
        """
        found = [self._batch(texts[start : start + batch]) for start in range(0, len(texts), batch)]
        rewards = torch.cat(found) * self._wanted.scale
        for text, reward in zip(texts, rewards.tolist(), strict=True):
            if not math.isfinite(reward):
                raise InputError(
                    f"The reward model {self._wanted.name} returned {reward} for {ending(text)}.",
                    hint="Its weights are broken or overflow their dtype: use another reward model.",
                )
        return rewards

    def _batch(self, texts: Sequence[str]) -> torch.Tensor:
        encoded = self._tokenizer(
            list(texts), truncation=True, max_length=self._longest, padding=True, return_tensors="pt"
        )
        given = {name: encoded[name].to(self._device) for name in ("input_ids", "attention_mask")}
        # An empty batch has no last token to read a score at.
        if not given["input_ids"].shape[1]:
            return torch.zeros(len(texts), device=self._device)
        logits = self.model(**given).logits.float()
        good, bad = self.labels
        return logits[:, good] if bad is None else logits[:, good] - logits[:, bad]


def load_reward_model(
    wanted: RewardModelSpec, inputs: Mapping[str, str], workspace: Path, device: torch.device
) -> RewardModel:
    """Load the reward model of a spec."""
    local = inputs.get("reward_model.identifier")
    folder = None if local is None else unpacked_path(Path(local), workspace)
    if folder is not None and (folder / _ADAPTER).is_file():
        source = base_model.Source(wanted.name, str(folder), trust_remote_code=wanted.trust_remote_code)
        model = _load_adapter(source)
    else:
        place = None if folder is None else str(folder)
        source = base_model.locate(wanted.name, place, trust_remote_code=wanted.trust_remote_code)
        model = _load(source)
    tokenizer = base_model.load_tokenizer(source)
    tokenizer.truncation_side = "left"
    if model.config.get_text_config().pad_token_id is None:
        # A decoder is scored at its last token that is not padding, so it must know the padding token.
        model.config.pad_token_id = model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return RewardModel(wanted, model, tokenizer, device)


def labels_of(wanted: RewardModelSpec, labels: Mapping[int, str]) -> tuple[int, int | None]:
    """Return the index of the output that is the reward, and of the one subtracted from it, if any."""
    good = _index(wanted.positive_label, labels, _GOOD, "positive_label")
    if wanted.type == "sentiment":
        bad = _index(wanted.negative_label, labels, _BAD, "negative_label")
        if good is None or bad is None:
            raise _unclear(wanted, labels, "positive_label" if good is None else "negative_label")
        return good, bad
    if good is None and len(labels) == 1:
        return next(iter(labels)), None
    if good is None:
        raise _unclear(wanted, labels, "positive_label")
    bad = _index(wanted.negative_label, labels, (), "negative_label")
    return good, bad


def _index(given: str | None, labels: Mapping[int, str], usual: Sequence[str], key: str) -> int | None:
    if given is not None:
        found = [index for index, name in labels.items() if name.lower() == given.lower()]
        if not found:
            raise ModelError(
                f"`reward_model.{key}` is {given!r}, which is not a label of the reward model.",
                hint=f"Its labels: {', '.join(labels.values())}.",
            )
        return found[0]
    named = [index for index, name in labels.items() if name.lower() in usual]
    return named[0] if len(named) == 1 else None


def _unclear(wanted: RewardModelSpec, labels: Mapping[int, str], key: str) -> ModelError:
    return ModelError(
        f"The {key.partition('_')[0]} label of the reward model {wanted.name} is ambiguous "
        f"(labels: {', '.join(labels.values())}).",
        hint=f"Set `reward_model.{key}`.",
    )


def _load(source: base_model.Source) -> PreTrainedModel:
    asked: dict[str, Any] = {"revision": source.revision, "trust_remote_code": source.trust_remote_code}
    try:
        model, report = AutoModelForSequenceClassification.from_pretrained(
            source.path, dtype=torch.float32, output_loading_info=True, **asked
        )
    except UnpicklingError as error:
        raise base_model.loading_error("weights", source, error) from error
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise _unusable(source, str(error).strip().splitlines()[0]) from error
    # Transformers initializes missing weights randomly: rewards of a random head would be meaningless.
    missing = sorted(report["missing_keys"])
    if missing:
        raise _unusable(source, f"its weights lack {', '.join(missing[:3])}")
    return model


def _load_adapter(source: base_model.Source) -> PreTrainedModel:
    """Load the adapter and head of a `reward` task with a `lora` block, merged into the base model."""
    containment.check_model(Path(source.path))
    try:
        adapted = AutoPeftModelForSequenceClassification.from_pretrained(
            source.path, num_labels=1, dtype=torch.float32, trust_remote_code=source.trust_remote_code
        )
    except UnpicklingError as error:
        raise base_model.loading_error("weights", source, error) from error
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise _unusable(source, str(error).strip().splitlines()[0]) from error
    merged: PreTrainedModel = adapted.merge_and_unload()
    return merged


def _unusable(source: base_model.Source, why: str) -> ModelError:
    return ModelError(
        f"The reward model {source.identifier} is not a usable sequence classifier: {why}.",
        hint="Train one with a `reward` task, or choose a model with a classification head.",
    )
