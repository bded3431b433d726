"""Serialization of requests, answers and errors between a job and its engine: one JSON object per line."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from tunefleet import errors
from tunefleet.errors import TunefleetError
from tunefleet.workloads.engine.protocol import Answer, Choice, EngineAdapter, EngineModel, Request, Sampling
from tunefleet.workloads.faults import RequestError

_FAILURES: Final = ("InputError", "DataError", "ModelError", "MachineError", "UnreachableError", "NotFoundError")


def line(message: Mapping[str, Any]) -> bytes:
    """Serialize a message."""
    # `surrogatepass`: prompts may contain lone surrogates, which strict UTF-8 would reject.
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def digest(model: EngineModel) -> str:
    """Return a digest that identifies a model with its options."""
    text = json.dumps(dataclasses.asdict(model), sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def model_of(data: Mapping[str, Any]) -> EngineModel:
    """Parse a model serialized by `dataclasses.asdict`."""
    adapters = tuple(EngineAdapter(**each) for each in data["adapters"])
    return EngineModel(**{**data, "adapters": adapters})


def request_of(data: Mapping[str, Any]) -> Request:
    """Parse a request serialized by `dataclasses.asdict`."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in data["sampling"].items()}
    sampling = Sampling(**values)  # type: ignore[arg-type]
    return Request(data["key"], data["prompt"], sampling, data["adapter"], data["rendered"])


def choice_of(data: Mapping[str, Any]) -> Choice:
    """Parse a choice serialized by `dataclasses.asdict`."""
    return Choice(**data)


def answer_of(data: Mapping[str, Any]) -> Answer:
    """Parse an answer serialized by `dataclasses.asdict`."""
    return Answer(data["key"], tuple(choice_of(each) for each in data["choices"]), data["prompt_tokens"])


def failure(error: BaseException) -> dict[str, Any]:
    """Serialize an exception, to be raised again by the client."""
    if isinstance(error, RequestError):
        return {"class": "RequestError", "message": error.message, "hint": error.hint, "key": error.key}
    if isinstance(error, TunefleetError):
        names = [each.__name__ for each in type(error).__mro__ if each.__name__ in _FAILURES]
        return {"class": (names or ["InputError"])[0], "message": error.message, "hint": error.hint}
    memory = isinstance(error, MemoryError) or "out of memory" in str(error).lower()
    return {"class": "MemoryError" if memory else "RuntimeError", "message": f"{type(error).__name__}: {error}"}


def raised(data: Mapping[str, Any]) -> Exception:
    """Return the exception that was raised in the engine."""
    name, message = data["class"], str(data["message"])
    if name == "RequestError":
        return RequestError(message, key=int(data["key"]), hint=data.get("hint"))
    if name in _FAILURES:
        found: TunefleetError = getattr(errors, name)(message, hint=data.get("hint"))
        return found
    return MemoryError(message) if name == "MemoryError" else RuntimeError(message)
