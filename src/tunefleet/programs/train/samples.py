"""Answers to a few held-out prompts, written greedily: what a loss alone does not show."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from tunefleet.dataset.notes import Notes
from tunefleet.programs.data.readers import numbered
from tunefleet.programs.data.sources import Portion
from tunefleet.programs.data.tokens import Encoder
from tunefleet.programs.train.exact import ExactTrainer, random_state_kept


@dataclass(frozen=True, slots=True)
class Question:
    """A held-out prompt: its text, its tokens, and the answer of the dataset."""

    prompt: str
    ids: list[int]
    reference: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model wrote."""

    prompt: str
    output: str
    reference: str | None

    def as_json(self) -> dict[str, Any]:
        """Return it as the result lists it."""
        return asdict(self)


def choose_questions(portion: Portion, encoder: Encoder, count: int, room: int) -> list[Question]:
    """Take the first prompts that leave room for an answer.

    Args:
        portion: The held-out rows.
        encoder: The model's.
        count: How many at most.
        room: Longest prompt, in tokens.
    """
    questions: list[Question] = []
    for number, row in numbered(portion.rows):
        if len(questions) == count:
            break
        question = Question(*encoder.prompt(portion.shape.read(number, row, Notes())))
        if 0 < len(question.ids) <= room:
            questions.append(question)
    return questions


def answer(
    trainer: ExactTrainer, tokenizer: PreTrainedTokenizerBase, questions: list[Question], max_new_tokens: int
) -> list[Answer]:
    """Let the model answer greedily, all prompts in one batch, in the arithmetic of the training.

    Args:
        trainer: Has the model, which is left in the mode that it was in.
        tokenizer: The model's.
        questions: What to answer.
        max_new_tokens: Longest answer.
    """
    if not questions:
        return []
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


def _ends(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """All tokens that end an answer: a chat model's end of turn is often another than its end of text."""
    known = model.generation_config.eos_token_id if model.generation_config is not None else None
    ends = {tokenizer.eos_token_id, *(known if isinstance(known, list) else [known])}
    return sorted(end for end in ends if end is not None)
