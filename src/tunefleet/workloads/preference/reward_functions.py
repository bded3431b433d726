"""Rule-based rewards: functions that return a number for each answer."""

from __future__ import annotations

import importlib
import math
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tunefleet.errors import InputError
from tunefleet.spec.options.rewards import (
    ExactMatchReward,
    FormatReward,
    FunctionReward,
    LengthReward,
    RegexReward,
    Reward,
)
from tunefleet.workloads.common.answer_extraction import NUMBER, beginning, last_number, number
from tunefleet.workloads.data.formats import Content

_MARKED: Final = re.compile(r"####[ \t]*([^\n]*)")
_NAMED: Final = re.compile(r"\bA:\s*([^\n]+)")


@dataclass(frozen=True, slots=True)
class Completions:
    """Answers to be rewarded, with their prompts, references and tokens."""

    prompts: Sequence[Content]
    answers: Sequence[str]
    references: Sequence[str | None]
    tokens: Sequence[Sequence[int]]


# Returns a reward for each answer.
Rule = Callable[[Completions], list[float]]


def final_answer(text: str, pattern: re.Pattern[str] | None = None) -> str | None:
    """Return the normalized final answer of a text; None if it has none.

    Args:
        pattern: Regular expression whose first group, or full match, is the answer. Default: the number after the
            first `####` that has one, as in evaluations, so that text after the answer is ignored; without a number
            the text after it; without `####` the text after the last `A:`, else the last number.
    """
    if pattern is not None:
        matches = list(pattern.finditer(text))
        return None if not matches else _spelled(matches[-1].group(1 if pattern.groups else 0) or "")
    marked: list[str] = _MARKED.findall(text)
    if marked:
        numbers = (number(found[0]) for line in marked if (found := NUMBER.search(line)))
        return next(numbers, None) or next((_spelled(line) for line in marked if line.strip()), None)
    named = _NAMED.findall(text)
    return _spelled(named[-1]) if named else last_number(text)


def _spelled(text: str) -> str:
    """Normalize number formats, surrounding spaces, a trailing full stop and case."""
    return number(text) or text.strip().rstrip(".").casefold()


def by_rule(wanted: Reward) -> Rule:
    """Return the function of a rule.

    It raises InputError if the user's function fails, or if a reward is NaN or infinite.
    """
    # TRL would skip a NaN and continue as if the reward were not configured.
    rule = _rule(wanted)
    name = f"function {wanted.function}" if isinstance(wanted, FunctionReward) else wanted.type

    def finite(given: Completions) -> list[float]:
        rewards = rule(given)
        for reward, answer in zip(rewards, given.answers, strict=True):
            if not math.isfinite(reward):
                raise InputError(
                    f"Reward {name} returned {reward} for the answer {beginning(answer)}.",
                    hint="Return a finite number for every answer, 0 for no reward.",
                )
        return rewards

    return finite


def _rule(wanted: Reward) -> Rule:
    match wanted:
        case ExactMatchReward():
            return _exact(None if wanted.pattern is None else re.compile(wanted.pattern, re.DOTALL))
        case RegexReward():
            compiled = re.compile(wanted.pattern, re.DOTALL)
            return _matching(compiled.fullmatch if wanted.whole else compiled.search)
        case FormatReward():
            parts = r"\s*".join(rf"<{tag}>(?:(?!</?{tag}>).)*</{tag}>" for tag in wanted.tags)
            return _matching(re.compile(rf"\s*{parts}\s*", re.DOTALL).fullmatch)
        case LengthReward():
            return _between(wanted.min_tokens, wanted.max_tokens)
        case FunctionReward():
            return _called(wanted.function)


def _exact(pattern: re.Pattern[str] | None) -> Rule:
    def right(answer: str, reference: str) -> bool:
        wanted = final_answer(reference, pattern) or _spelled(reference)
        return bool(wanted) and final_answer(answer, pattern) == wanted

    return lambda given: [
        float(right(answer, reference or "")) for answer, reference in zip(given.answers, given.references, strict=True)
    ]


def _matching(match: Callable[[str], Any]) -> Rule:
    return lambda given: [float(match(answer) is not None) for answer in given.answers]


def _between(least: int, most: int) -> Rule:
    return lambda given: [_share(len(ids), least, most) for ids in given.tokens]


def _share(length: int, least: int, most: int) -> float:
    if length < least:
        return length / least
    return 1.0 if length <= most else max(0.0, 2.0 - length / most)


def _called(name: str) -> Rule:
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"The reward function {name} cannot be imported: {error}.",
            hint="Its module must be installed on the worker, or be in a folder of its PYTHONPATH.",
        ) from error

    def reward(given: Completions) -> list[float]:
        try:
            found = function(
                prompts=list(given.prompts), completions=list(given.answers), references=list(given.references)
            )
            found = list(found) if isinstance(found, Iterator) else found
        except (MemoryError, torch.OutOfMemoryError):
            raise  # the retry after running out of memory uses a smaller batch
        except Exception as error:
            reason = traceback.format_exception_only(error)[-1].strip()
            raise InputError(f"The reward function {name} failed: {reason}", detail=traceback.format_exc()) from error
        try:
            rewards = [float(value) for value in found]
        except (TypeError, ValueError) as error:
            raise InputError(f"The reward function {name} did not return a list of numbers: {error}.") from error
        if len(rewards) != len(given.answers):
            count, answers = len(rewards), len(given.answers)
            raise InputError(f"The reward function {name} returned {count} rewards for {answers} answers.")
        return rewards

    return reward
