"""Greedy answers to eval prompts, before and after training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tunefleet.analysis.dataset.notes import Notes
from tunefleet.errors import DataError
from tunefleet.spec.options.answer_match import ExactMatchSpec
from tunefleet.workloads.common.answer_extraction import compare, extractor
from tunefleet.workloads.data.formats import Place
from tunefleet.workloads.data.readers import numbered
from tunefleet.workloads.data.sources import Portion
from tunefleet.workloads.data.tokenization import Encoder
from tunefleet.workloads.training.exact_trainer import ExactTrainer, preserve_random_state

# Prompts of one batch.
_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class EvalPrompt:
    """An eval prompt: its text, its tokens, and the reference answer of the dataset."""

    prompt: str
    ids: list[int]
    reference: str
    place: Place


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's answer to a prompt."""

    prompt: str
    output: str
    reference: str

    def as_json(self) -> dict[str, Any]:
        """Return the JSON of the result."""
        return asdict(self)


def choose_prompts(portion: Portion, encoder: Encoder, count: int, room: int) -> tuple[list[EvalPrompt], int]:
    """Return the first prompts of at most `room` tokens, and how many were skipped."""
    questions: list[EvalPrompt] = []
    skipped = 0
    for number, row in numbered(portion.rows):
        if len(questions) == count:
            break
        example = portion.shape.read(number, row, Notes())
        question = EvalPrompt(*encoder.prompt(example), example.place)
        if 0 < len(question.ids) <= room:
            questions.append(question)
        else:
            skipped += 1
    return questions, skipped


def answer(
    trainer: ExactTrainer,
    tokenizer: PreTrainedTokenizerBase,
    questions: list[EvalPrompt],
    max_new_tokens: int,
    before_batch: Callable[[], None] = lambda: None,
) -> list[Answer]:
    """Generate greedy answers with the compute dtype of the training run."""
    # Batches of prompts of similar length need less padding.
    order = sorted(range(len(questions)), key=lambda at: len(questions[at].ids))
    found: dict[int, Answer] = {}
    for start in range(0, len(order), _AT_ONCE):
        before_batch()
        batch = order[start : start + _AT_ONCE]
        written = _write(trainer, tokenizer, [questions[at] for at in batch], max_new_tokens)
        found |= zip(batch, written, strict=True)
    return [found[at] for at in range(len(questions))]


def _write(
    trainer: ExactTrainer, tokenizer: PreTrainedTokenizerBase, questions: list[EvalPrompt], max_new_tokens: int
) -> list[Answer]:
    model: PreTrainedModel = trainer.model
    longest = max(len(question.ids) for question in questions)
    pad = tokenizer.pad_token_id
    # Padding on the left: generation continues from the last column of every row.
    ids = torch.tensor([[pad] * (longest - len(q.ids)) + q.ids for q in questions], device=model.device)
    mask = torch.tensor([[0] * (longest - len(q.ids)) + [1] * len(q.ids) for q in questions], device=model.device)
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        use_cache=True,
        pad_token_id=pad,
        eos_token_id=_ends(model, tokenizer),
    )
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), preserve_random_state(), trainer.accelerator.autocast():
            written = model.generate(input_ids=ids, attention_mask=mask, generation_config=settings)
    finally:
        model.train(was_training)
    texts = tokenizer.batch_decode(written[:, longest:], skip_special_tokens=True)
    return [Answer(q.prompt, text, q.reference) for q, text in zip(questions, texts, strict=True)]


def require_comparable(questions: list[EvalPrompt], match: ExactMatchSpec, portion: Portion) -> None:
    """Refuse eval rows whose reference answer cannot be compared."""
    if portion.shape.kind == "text":
        raise DataError(
            f"The rows of {portion.shape.origin} are texts without answers, so exact match cannot be computed.",
            hint="Remove `evaluate.exact_match`, or set prompt_column and response_column.",
        )
    if not questions:
        raise DataError(
            "No eval prompt leaves space for an answer, so exact match cannot be computed.",
            hint="Lower `evaluate.max_new_tokens`, or choose other eval rows.",
        )
    take = extractor(match)
    for question in questions[: match.rows]:
        if take(question.reference) is None:
            raise DataError(
                f"{question.place}: exact_match.extract: {match.extract} finds nothing in its reference answer.",
                hint="Choose another `evaluate.exact_match.extract`, or correct the row.",
            )


def right(answers: list[Answer], match: ExactMatchSpec) -> list[bool]:
    """Return for each of the first `match.rows` answers whether it is right."""
    comparisons = [compare(answer.output, answer.reference, match) for answer in answers[: match.rows]]
    return [each is not None and each.right for each in comparisons]


def _ends(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return all tokens that end an answer."""
    # A chat model's end-of-turn token often differs from the tokenizer's end-of-text token.
    known = model.generation_config.eos_token_id if model.generation_config is not None else None
    ends = {tokenizer.eos_token_id, *(known if isinstance(known, list) else [known])}
    return sorted(end for end in ends if end is not None)
