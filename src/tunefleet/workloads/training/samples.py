"""Answers to held-out prompts, written greedily: what a loss alone does not show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tunefleet.analysis.dataset.notes import Notes
from tunefleet.errors import DataError
from tunefleet.spec.options.answer_match import ExactMatchSpec
from tunefleet.workloads.common.answer_extraction import extractor, judge
from tunefleet.workloads.data.formats import Place
from tunefleet.workloads.data.readers import numbered
from tunefleet.workloads.data.sources import Portion
from tunefleet.workloads.data.tokenization import Encoder
from tunefleet.workloads.training.exact_trainer import ExactTrainer, random_state_kept

# Prompts of one batch.
_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class Question:
    """A held-out prompt: its text, its tokens, and the answer of the dataset."""

    prompt: str
    ids: list[int]
    reference: str
    place: Place


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model wrote."""

    prompt: str
    output: str
    reference: str

    def as_json(self) -> dict[str, Any]:
        """Return it as the result lists it."""
        return asdict(self)


def choose_questions(portion: Portion, encoder: Encoder, count: int, room: int) -> tuple[list[Question], int]:
    """Take the first prompts that leave room for an answer."""
    questions: list[Question] = []
    skipped = 0
    for number, row in numbered(portion.rows):
        if len(questions) == count:
            break
        example = portion.shape.read(number, row, Notes())
        question = Question(*encoder.prompt(example), example.place)
        if 0 < len(question.ids) <= room:
            questions.append(question)
        else:
            skipped += 1
    return questions, skipped


def answer(
    trainer: ExactTrainer,
    tokenizer: PreTrainedTokenizerBase,
    questions: list[Question],
    max_new_tokens: int,
    before_batch: Callable[[], None] = lambda: None,
) -> list[Answer]:
    """Let the model answer greedily, in the arithmetic of the training."""
    # Prompts of about the same length together: a batch is padded to its longest.
    order = sorted(range(len(questions)), key=lambda at: len(questions[at].ids))
    found: dict[int, Answer] = {}
    for start in range(0, len(order), _AT_ONCE):
        before_batch()
        batch = order[start : start + _AT_ONCE]
        written = _write(trainer, tokenizer, [questions[at] for at in batch], max_new_tokens)
        found |= zip(batch, written, strict=True)
    return [found[at] for at in range(len(questions))]


def _write(
    trainer: ExactTrainer, tokenizer: PreTrainedTokenizerBase, questions: list[Question], max_new_tokens: int
) -> list[Answer]:
    model: PreTrainedModel = trainer.model
    longest = max(len(question.ids) for question in questions)
    pad = tokenizer.pad_token_id
    # Padding goes to the left: every answer starts at the same column.
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
        with torch.no_grad(), random_state_kept(), trainer.accelerator.autocast():
            written = model.generate(input_ids=ids, attention_mask=mask, generation_config=settings)
    finally:
        model.train(was_training)
    texts = tokenizer.batch_decode(written[:, longest:], skip_special_tokens=True)
    return [Answer(q.prompt, text, q.reference) for q, text in zip(questions, texts, strict=True)]


def require_comparable(questions: list[Question], match: ExactMatchSpec, portion: Portion) -> None:
    """Refuse rows whose own answer has nothing that could be compared."""
    if portion.shape.kind == "text":
        raise DataError(
            f"The rows of {portion.shape.origin} are texts without answers, so none could be right.",
            hint="Leave `evaluate.exact_match` out, or name prompt_column and response_column.",
        )
    if not questions:
        raise DataError(
            "No held-out prompt leaves room for an answer, so none could be right.",
            hint="Lower `evaluate.max_new_tokens`, or hold out other rows.",
        )
    take = extractor(match)
    for question in questions[: match.rows]:
        if take(question.reference) is None:
            raise DataError(
                f"{question.place}: its answer has nothing that exact_match.extract: {match.extract} would find.",
                hint="Choose another `evaluate.exact_match.extract`, or correct the row.",
            )


def right(answers: list[Answer], match: ExactMatchSpec) -> list[bool]:
    """Say which of the answers to the first rows are right."""
    verdicts = [judge(answer.output, answer.reference, match) for answer in answers[: match.rows]]
    return [verdict is not None and verdict.right for verdict in verdicts]


def _ends(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """All tokens that end an answer: a chat model's end of turn is often another than its end of text."""
    known = model.generation_config.eos_token_id if model.generation_config is not None else None
    ends = {tokenizer.eos_token_id, *(known if isinstance(known, list) else [known])}
    return sorted(end for end in ends if end is not None)
