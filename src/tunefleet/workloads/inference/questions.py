"""The questions of several tasks without duplicates. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tunefleet.errors import InputError
from tunefleet.schemas.chat import BASE
from tunefleet.spec.options.generation import InferenceSpec
from tunefleet.workloads.inference.deduplication import Batch, batch
from tunefleet.workloads.inference.items import Item

# Key of an item's metadata that names one of the model's adapters.
ADAPTER = "adapter"


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt, with everything that distinguishes it from others of the same run."""

    prompt: str
    system: str | None = None
    adapter: str | None = None
    draw: int = 0
    chat: str | None = None

    @property
    def key(self) -> str:
        """The question's key on disk."""
        # `chat` is omitted if empty, so that keys of questions without one stay the same.
        parts = {name: value for name, value in asdict(self).items() if name != "chat" or value is not None}
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The question as a conversation."""
        before = [{"role": "system", "content": self.system}] if self.system else []
        asked = [{"role": "user", "content": self.prompt}] if self.chat is None else json.loads(self.chat)
        return [*before, *asked]


def is_drawn(inference: InferenceSpec) -> bool:
    """Return whether the same question may be answered differently each time."""
    return inference.do_sample is not False and inference.temperature > 0 and inference.seed is None


def ask(
    items: Sequence[Item], inference: InferenceSpec, adapters: Sequence[str], *, default: str | None
) -> list[Question]:
    """Return the questions of one task.

    Raises:
        InputError: If an item names an adapter that the model does not have, or names none of several; or if a chat
            begins with a system message, and the task has a system prompt.
    """
    drawn, seen = is_drawn(inference), Counter[tuple[str, str | None, str | None]]()
    system = inference.system_prompt or None
    found = []
    for number, item in enumerate(items):
        adapter = _adapter(number, item.metadata, adapters, default)
        if system and item.chat and item.chat[0]["role"] == "system":
            raise InputError(
                f"Item {number} begins with a system message, but the run also has a system_prompt.",
                hint="Remove one of them.",
            )
        chat = json.dumps(item.chat) if item.chat else None
        # A question that one task repeats is sampled again each time, so it gets a number.
        place = (item.text, adapter, chat)
        found.append(Question(item.text, system, adapter, seen[place] if drawn else 0, chat))
        seen[place] += 1
    return found


def join(questions: Mapping[str, Sequence[Question]]) -> Batch[Question]:
    """Join the questions of tasks; equal ones are asked once, except repeated sampled questions of one task."""
    return batch(questions)


def _adapter(number: int, metadata: Mapping[str, Any], adapters: Sequence[str], default: str | None) -> str | None:
    named = metadata.get(ADAPTER, default if adapters else BASE)
    if named in adapters:
        return str(named)
    if named == BASE or (named is None and ADAPTER in metadata):
        return None
    known = f"The model has: {', '.join((*adapters, BASE))}." if adapters else "The model has no adapters."
    if named is None:
        raise InputError(
            f"Item {number} does not name one of the adapters. {known}",
            hint=f"Name one as `{ADAPTER}` in the item's metadata, or combine them with `apply: merge`.",
        )
    raise InputError(
        f"Item {number} names the adapter {named!r}. {known}",
        hint=f"Fix `{ADAPTER}` in the item's metadata; {BASE} is the model without adapters.",
    )
