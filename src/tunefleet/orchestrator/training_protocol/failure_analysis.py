"""Failure analysis: rules that map a job's error text and configuration to a cause and suggestions. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from tunefleet.lifecycle.task import TaskReason
from tunefleet.schemas.training_protocol.jobs import Analysis, Frame, Suggestion, TracebackView

_MAX_SENTENCE: Final = 2_000
_FRAME: Final = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d{1,9}), in (?P<function>.+)$', re.MULTILINE)
_LAST: Final = re.compile(
    r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning))(?:: (?P<message>.*))?$"
)


@dataclass(frozen=True, slots=True)
class _Rule:
    """A pattern in error texts and its meaning."""

    pattern: re.Pattern[str]
    error_type: str
    reason: TaskReason
    description: str
    help: Callable[[Mapping[str, Any]], list[Suggestion]]


def _suggest(field: str, now: Any, then: Any, reason: str, impact: str) -> Suggestion:
    return Suggestion(field=field, current_value=now, suggested_value=then, reason=reason, impact=impact)


def _less_memory(config: Mapping[str, Any]) -> list[Suggestion]:
    batch, steps = _positive_int(config.get("batch_size")), _positive_int(config.get("gradient_accumulation_steps"))
    found = []
    if batch > 1:
        found.append(_suggest("batch_size", batch, batch // 2, "a smaller batch needs less memory", "high"))
        found.append(
            _suggest("gradient_accumulation_steps", steps, steps * 2, "the effective batch size stays the same", "low")
        )
    length = config.get("max_seq_length")
    if isinstance(length, int) and length > 256:
        found.append(
            _suggest("max_seq_length", length, length // 2, "activations grow with the sequence length", "high")
        )
    if config.get("gradient_checkpointing") is not True:
        found.append(
            _suggest("gradient_checkpointing", config.get("gradient_checkpointing"), True,
                     "activations are recomputed instead of stored", "high")
        )  # fmt: skip
    return found


def _positive_int(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _smaller_rate(config: Mapping[str, Any]) -> list[Suggestion]:
    rate = config.get("learning_rate")
    if not isinstance(rate, int | float) or rate <= 0:
        return []
    return [_suggest("learning_rate", rate, rate / 2, "a high learning rate makes the loss diverge", "high")]


def _more_time(config: Mapping[str, Any]) -> list[Suggestion]:
    limit = config.get("max_runtime_s")
    if not isinstance(limit, int | float):
        return []
    return [_suggest("max_runtime_s", limit, limit * 2, "the run was stopped at its time limit", "high")]


def _nothing(_: Mapping[str, Any]) -> list[Suggestion]:
    return []


def _rule(pattern: str, error_type: str, reason: TaskReason, description: str, help_: Any = _nothing) -> _Rule:
    return _Rule(re.compile(pattern, re.IGNORECASE), error_type, reason, description, help_)


_RULES: Final = (
    _rule(r"out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|DefaultCPUAllocator: can't allocate|MemoryError",
          "oom_training", TaskReason.OUT_OF_MEMORY, "Out of memory.", _less_memory),
    _rule(r"no space left on device|disk quota exceeded|ENOSPC", "disk_full", TaskReason.DISK_FULL,
          "The disk is full."),
    _rule(r"loss (?:is|was|became) (?:nan|inf)|(?:nan|inf) loss|diverged", "diverged", TaskReason.DIVERGED,
          "The loss is no longer a number.", _smaller_rate),
    _rule(r"timed? ?out|max_runtime_s|TimeoutError", "timeout", TaskReason.TIMEOUT,
          "The job reached its time limit.", _more_time),
    _rule(r"ConnectionError|Connection (?:refused|reset|aborted)|Max retries exceeded|Name or service not known|"
          r"Temporary failure in name resolution|HTTPError: 5\d\d", "network", TaskReason.NETWORK,
          "A network request failed."),
    _rule(r"KeyError|column .* (?:not|missing)|dataset.*(?:not found|empty|does not exist)|FileNotFoundError",
          "data", TaskReason.BAD_INPUT, "The data is missing, or does not match the configuration."),
    _rule(r"is not a local folder and is not a valid model|Repository Not Found|RepositoryNotFoundError|gated repo",
          "model", TaskReason.BAD_INPUT, "The model cannot be loaded."),
    _rule(r"CUDA error|NCCL|device-side assert", "device", TaskReason.CRASHED, "The GPU or its driver failed."),
    _rule(r"SIGKILL|exit code -?9|was killed", "killed", TaskReason.KILLED, "The process was killed."),
)  # fmt: skip
_PHASES: Final = (
    ("evaluation", re.compile(r"in evaluate\b|evaluation_loop|prediction_step|eval(?:uat)", re.IGNORECASE)),
    ("data", re.compile(r"load_dataset|dataset|tokeniz|collat", re.IGNORECASE)),
    ("model", re.compile(r"from_pretrained|load_checkpoint|state_dict", re.IGNORECASE)),
    ("training", re.compile(r"training_step|backward|optimizer|\btrain\b", re.IGNORECASE)),
)


def split_error(error: str | None) -> tuple[str | None, str | None]:
    """Split a job's error text into one sentence and the details."""
    if not error or not error.strip():
        return None, None
    lines = [line.strip() for line in error.strip().splitlines() if line.strip()]
    sentence = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return sentence[:_MAX_SENTENCE], error if len(lines) > 1 or len(sentence) > _MAX_SENTENCE else None


def reason_of(error: str | None) -> TaskReason:
    """Return the reason for a job's error text; `CRASHED` if no rule matches."""
    rule = _first(error or "")
    return TaskReason.CRASHED if rule is None else rule.reason


def analyze(*, reason: str | None, error: str | None, detail: str | None, config: Mapping[str, Any]) -> Analysis:
    """Return the cause of a job's failure with suggestions."""
    text = "\n".join(part for part in (error, detail) if part)
    rule = _first(text)
    phase = phase_of(detail or error or "")
    if rule is None:
        known = next((each for each in _RULES if each.reason.value == reason), None)
        if known is None:
            description = text.splitlines()[0][:_MAX_SENTENCE] if text else "No error message."
            return _analysis("unknown" if text or reason else "no_error", phase, description, "low", [])
        return _analysis(known.error_type, phase, known.description, "medium", known.help(config))
    kind = rule.error_type
    if kind == "oom_training" and phase == "evaluation":
        kind = "oom_eval"
    sure: Literal["high", "medium"] = "high" if reason in {None, rule.reason.value} else "medium"
    return _analysis(kind, phase, rule.description, sure, rule.help(config))


def traceback_of(detail: str | None) -> TracebackView | None:
    """Parse a Python traceback; None if the text contains none."""
    if not detail or "Traceback (most recent call last)" not in detail:
        return None
    # The last traceback: with chained exceptions it is the one that ended the job.
    raw = detail[detail.rindex("Traceback (most recent call last)") :]
    lines = raw.splitlines()
    frames = []
    for number, line in enumerate(lines):
        found = _FRAME.match(line)
        if found is not None:
            after = lines[number + 1].strip() if number + 1 < len(lines) else ""
            code = None if not after or after.startswith("File ") else after
            frames.append(
                Frame(file=found["file"], line=int(found["line"]), function=found["function"].strip(), code=code)
            )
    last = next((found for line in reversed(lines) if (found := _LAST.match(line.strip()))), None)
    return TracebackView(
        raw=raw,
        frames=frames,
        exception_type=last["type"] if last else None,
        exception_message=last["message"] if last else None,
    )


def _analysis(
    kind: str, phase: str | None, description: str, sure: Literal["high", "medium", "low"], help_: list[Suggestion]
) -> Analysis:
    return Analysis(error_type=kind, error_phase=phase, description=description, confidence=sure, suggestions=help_)


def _first(text: str) -> _Rule | None:
    return next((rule for rule in _RULES if rule.pattern.search(text)), None)


def phase_of(text: str) -> str | None:
    """Return the phase of training that an error text is from; None if unknown."""
    return next((name for name, pattern in _PHASES if pattern.search(text)), None)
