"""Answers: stored as they arrive, so that a relaunch repeats no question; JSON answers against their schema.

`answers.jsonl` in the job folder: a header line with the model and options, then one line per answer. Append-only; a
torn last line is cut. A file made with another model or options is moved aside.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import jsonschema_rs
import orjson

from tunefleet.errors import InputError
from tunefleet.spec.options.answer_schema import AnswerField
from tunefleet.spec.options.generation import InferenceSpec
from tunefleet.workloads.engine.protocol import Choice

logger = logging.getLogger(__name__)
NAME: Final = "answers.jsonl"
_SYNC_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The answers to one question."""

    rendered: str
    prompt_tokens: int
    choices: tuple[Choice, ...]
    error: str | None = None


class Answers:
    """The answers of one run."""

    def __init__(self, folder: Path, made_with: Mapping[str, Any]) -> None:
        self.path = folder / NAME
        text = json.dumps(made_with, sort_keys=True, default=str)
        self._stamp = hashlib.sha256(text.encode()).hexdigest()
        self._made_with = dict(made_with)
        self._known: dict[str, StoredAnswer] = {}
        self._synced_at = time.monotonic()
        self._fd = -1

    @property
    def known(self) -> Mapping[str, StoredAnswer]:
        """Key of a question → its answers."""
        return self._known

    def __enter__(self) -> Answers:
        """Read the answers of an earlier launch, and open the file for appending."""
        self._set_aside()
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size = self._read()
        # Before appending, or the next answer would continue the torn line.
        os.ftruncate(self._fd, size)
        if size == 0:
            self._append({"stamp": self._stamp, "made_with": self._made_with})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Make everything durable."""
        self.sync()
        os.close(self._fd)
        self._fd = -1

    def add(self, key: str, kept: StoredAnswer) -> None:
        """Append the answers to a question; they are durable within about a second.

        Raises:
            OSError: If the disk is full.
        """
        self._known[key] = kept
        self._append({"key": key, **asdict(kept)})
        # fsync at most once a second: a sync per answer would slow down small prompts.
        if time.monotonic() - self._synced_at >= _SYNC_S:
            self.sync()

    def sync(self) -> None:
        """Make everything durable."""
        self._synced_at = time.monotonic()
        os.fsync(self._fd)

    def _append(self, record: Mapping[str, Any]) -> None:
        data = memoryview(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_DATACLASS))
        while data:
            data = data[os.write(self._fd, data) :]

    def _read(self) -> int:
        """Read the file; return the size of its complete lines."""
        size = 0
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines):
                if not line.endswith(b"\n"):
                    break
                if number:
                    self._take(orjson.loads(line))
                size += len(line)
        return size

    def _take(self, record: dict[str, Any]) -> None:
        choices = tuple(Choice(**choice) for choice in record["choices"])
        self._known[record["key"]] = StoredAnswer(record["rendered"], record["prompt_tokens"], choices, record["error"])

    def _set_aside(self) -> None:
        try:
            with self.path.open("rb") as lines:
                first = lines.readline()
            stamp = orjson.loads(first)["stamp"] if first.endswith(b"\n") else None
        except FileNotFoundError:
            return
        except (orjson.JSONDecodeError, KeyError):
            stamp = None
        # Answers of another model or sampling must not be mixed with new ones.
        if stamp != self._stamp:
            logger.warning("%s was created with another model or other options; it is set aside.", self.path.name)
            self.path.replace(self.path.with_name(f"{NAME}.old"))


class AnswerSchema:
    """The schema of the answers."""

    def __init__(self, inference: InferenceSpec) -> None:
        templates = inference.templates
        self._fields = {each.name: each for each in templates} if isinstance(templates, tuple) else {}
        try:
            self._validator = jsonschema_rs.validator_for(inference.json_schema or {}, validate_formats=True)
        except (ValueError, jsonschema_rs.ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"spec.inference.templates is not a JSON Schema: {reason}") from error

    def parse(self, answer: str, finish_reason: str) -> tuple[Any, str | None]:
        """Parse and validate an answer; return the value and the error."""
        try:
            found = json.loads(answer)
        except ValueError as error:
            cut = " It was truncated: raise inference.max_tokens." if finish_reason == "length" else ""
            return None, f"The answer is not JSON: {error}.{cut}"
        # One error is enough for the message.
        fault = next(self._validator.iter_errors(found), None)
        if fault is not None:
            where = ".".join(str(part) for part in fault.instance_path)
            return found, f"The answer does not match the schema{f' at {where}' if where else ''}: {fault.message}."
        field = self._out_of_bounds(found)
        return found, None if field is None else f"The answer does not match the schema at {field}: out of bounds."

    def _out_of_bounds(self, found: Any) -> str | None:
        if not isinstance(found, dict):
            return None
        fields: dict[str, AnswerField] = self._fields
        return next((name for name, field in fields.items() if not field.holds(found.get(name))), None)
