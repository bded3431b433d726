"""Sends questions to an engine, stores each answer as it arrives, and reports progress."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tunefleet import trainer_control
from tunefleet.errors import InputError
from tunefleet.spec.options.generation import InferenceSpec
from tunefleet.workloads.common.job_secrets import redacted
from tunefleet.workloads.engine.protocol import Answer, Engine, Request, Sampling
from tunefleet.workloads.faults import RequestError
from tunefleet.workloads.inference.answers import Answers, StoredAnswer
from tunefleet.workloads.inference.questions import Question

logger = logging.getLogger(__name__)

GENERATING: Final = "generating"
_METRIC_S: Final = 5.0


def sampling_of(inference: InferenceSpec) -> Sampling:
    """Return the sampling parameters of answers."""
    schema = inference.json_schema
    return Sampling(
        temperature=0.0 if inference.do_sample is False else inference.temperature,
        top_p=inference.top_p,
        top_k=inference.top_k,
        min_p=inference.min_p,
        max_tokens=inference.longest,
        min_tokens=inference.min_tokens,
        presence_penalty=inference.presence_penalty,
        frequency_penalty=inference.frequency_penalty,
        repetition_penalty=inference.repetition_penalty,
        stop=inference.stop,
        stop_token_ids=inference.stop_token_ids,
        bad_words=inference.bad_words,
        seed=inference.seed,
        n=inference.n,
        skip_special_tokens=inference.skip_special_tokens,
        logprobs=inference.logprobs,
        schema=None if schema is None else json.dumps(schema),
    )


def render(engine: Engine, question: Question, inference: InferenceSpec) -> tuple[str, bool]:
    """Return the rendered prompt of a question, and whether a chat template rendered it.

    Raises:
        InputError: If the model has no chat template, and the spec or a chat needs one.
    """
    if question.chat is not None and (inference.chat_template is False or not engine.has_template):
        why = "inference.chat_template is false" if engine.has_template else "the model has no chat template"
        raise InputError(f"An item is a list of messages, and {why}.", hint="Write each prompt as one text.")
    if inference.chat_template is False:
        return "\n".join(message["content"] for message in question.messages), False
    given = inference.chat_template_kwargs
    if not engine.has_template and (inference.chat_template is True or given):
        key = "chat_template" if inference.chat_template is True else "chat_template_kwargs"
        raise InputError(f"spec.inference.{key}: the model has no chat template.", hint="Remove it.")
    return engine.render(question.messages, **(given or {})), engine.has_template


@dataclass(slots=True)
class Throughput:
    """Progress and throughput of a run."""

    session: trainer_control.JobSession
    total: int
    done: int
    tokens: int = 0
    _began: float = field(default_factory=time.monotonic)
    _computed: int = 0
    _reported_at: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the first question."""
        return time.monotonic() - self._began

    @property
    def tokens_per_s(self) -> float | None:
        """Generated tokens per second."""
        return self.tokens / self.seconds if self.tokens and self.seconds > 0 else None

    def take(self, kept: StoredAnswer) -> None:
        """Count the answers to one question."""
        self.done += 1
        self._computed += 1
        self.tokens += sum(choice.tokens for choice in kept.choices)
        self.tell()

    def tell(self) -> None:
        """Report progress."""
        each_s = self.seconds / self._computed if self._computed else None
        eta_s = None if each_s is None else each_s * (self.total - self.done)
        self.session.status.update(phase=GENERATING, step=self.done, max_steps=self.total, eta_s=eta_s)
        self.session.journal.progress(
            GENERATING,
            step=self.done,
            max_steps=self.total,
            step_time_s=each_s,
            eta_s=eta_s,
            tokens_per_s=self.tokens_per_s,
        )
        now = time.monotonic()
        # Throughput is a metric of the run, which needs fewer points than its progress.
        if self.tokens_per_s is not None and (now - self._reported_at >= _METRIC_S or self.done == self.total):
            self._reported_at = now
            self.session.journal.metric(self.done, {"tokens_per_s": self.tokens_per_s})


def put(
    engine: Engine,
    questions: Sequence[Question],
    inference: InferenceSpec,
    answers: Answers,
    taken: Callable[[StoredAnswer], None],
) -> None:
    """Answer all questions; the error of an invalid one is stored, and the others continue."""
    sampling = sampling_of(inference)
    # Rendered in advance, so that a template error fails before anything is generated.
    rendered = [render(engine, question, inference) for question in questions]
    open_ones = {
        number: Request(number, text, sampling, question.adapter, by_template)
        for number, (question, (text, by_template)) in enumerate(zip(questions, rendered, strict=True))
    }

    def keep(number: int, kept: StoredAnswer) -> None:
        del open_ones[number]
        answers.add(questions[number].key, kept)
        taken(kept)

    # An invalid prompt ends the whole call of the engine, so the remaining ones are sent again.
    while open_ones:
        try:
            for answer in engine.generate(list(open_ones.values())):
                keep(answer.key, _kept(answer, rendered[answer.key][0]))
        except RequestError as error:
            logger.warning("A prompt cannot be answered: %s", error)
            keep(error.key, StoredAnswer(redacted(rendered[error.key][0]), 0, (), str(error)))


def _kept(answer: Answer, rendered: str) -> StoredAnswer:
    return StoredAnswer(redacted(rendered), answer.prompt_tokens, answer.choices)
