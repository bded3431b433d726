"""Converts chat messages of every common form into one: OpenAI, ShareGPT, content parts, tool calls, JSON text.

A converted message has `role`, `content` (a string) and all other keys that a chat template may read, such as
`tool_calls`, `tool_call_id`, `name` or `reasoning_content`. An assistant message that is not trained has `weight: 0`;
no other message has a weight.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tunefleet.analysis.dataset.notes import Notes, is_empty

Message = dict[str, Any]

# Other names of the four roles. Any other role is left to the chat template, which accepts or rejects it.
ROLES: Final = {
    "human": "user",
    "gpt": "assistant",
    "bing": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
# Roles whose message is a tool call of the assistant, as JSON text.
CALLS: Final = frozenset({"function_call", "tool_call"})
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})
_WEIGHTS: Final = ("weight", "train", "training", "trainable", "loss")
_READ: Final = frozenset({
    "role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "thinking", *_WEIGHTS,
})  # fmt: skip
"""Keys of a message that are read; a chat template may read others."""
_YES: Final = frozenset({"true", "yes", "1"})
_NO: Final = frozenset({"false", "no", "0"})
_KNOWN: Final = frozenset({"system", "developer", "user", "assistant", "tool"})


def read_messages(value: Any, column: str, notes: Notes | None = None, row: int = 0) -> tuple[Message, ...]:
    """Read a chat.

    Args:
        value: A list of messages, one message, JSON text of either, or an object of lists, as a table with a sequence
            of structures has it (`{"role": [...], "content": [...]}`).
        column: Column name, for errors.
        notes: Collects what is not used.
        row: Row number, for the notes.

    Raises:
        RowError: If it is not a chat, or a message holds content that cannot be trained as text.
    """
    if isinstance(value, str):
        value = parsed(value, column)
    value = _listed(value, ("role", "from"))
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise RowError(f"{column!r} holds {kind_of(value)}, not a list of messages")
    if not value:
        raise RowError(f"{column!r} is an empty conversation")
    return tuple(_message(each, column, notes or Notes(), row) for each in value)


def read_question(value: Any, column: str) -> tuple[Message, ...]:
    """Read a chat whose last message is to be answered; takes the arguments of `read_messages`.

    Raises:
        RowError: If it is not a chat, or ends with an answer.
    """
    chat = read_messages(value, column)
    if chat[-1]["role"] == "assistant":
        raise RowError(f"{column!r} ends with the assistant's own answer; end each chat with a message to be answered")
    return chat


def looks_like_messages(value: Any) -> bool:
    """Return whether a value is a chat and not a text: a list of messages, one message, or JSON text of a list."""
    if isinstance(value, str):
        text = value.lstrip()
        # A cheap test first: this runs for every row.
        if not text.startswith("[") or '"' not in text:
            return False
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return isinstance(value, list) and bool(value) and all(map(_is_message, value))
    return isinstance(value, list | Mapping)


def read_tools(value: Any, column: str = "tools") -> list[Any] | None:
    """Read the tools that a chat may call.

    Args:
        value: A list of JSON schemas, one schema, JSON text of either, or nothing.
        column: Column name, for errors.

    Raises:
        RowError: If it is none of these.
    """
    if isinstance(value, str):
        if not value.strip():
            return None
        value = parsed(value, column)
    listed = _listed(value, ("type", "function", "name"))
    if is_empty(listed):
        return None
    if not isinstance(listed, list):
        raise RowError(f"{column!r} holds {kind_of(value)}, not a list of tools")
    tools = [parsed(tool, column) if isinstance(tool, str) else tool for tool in listed]
    for tool in tools:
        if not isinstance(tool, Mapping):
            raise RowError(f"{column!r} holds {kind_of(tool)} among its tools; a tool is a JSON schema")
    return [without_nulls(tool) for tool in tools]


def parsed(text: str, column: str) -> Any:
    """Parse a text that holds JSON.

    Raises:
        RowError: If it is not valid JSON.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise RowError(f"{column!r} holds a text that is not valid JSON ({error})") from None
    # json raises it for deep nesting, which a hostile upload may have.
    except RecursionError:
        raise RowError(f"{column!r} holds JSON that is nested too deeply") from None


def without_nulls(value: Any) -> Any:
    """Return a value without the keys that are None: a table adds them for keys that only other rows have."""
    if isinstance(value, Mapping):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    return value


def read_flag(value: Any) -> bool | None:
    """Read true or false in any notation that tables use; None if it is neither."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower().removesuffix(".0")
    return True if text in _YES else False if text in _NO else None


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and ("role" in value or {"from", "value"} <= value.keys())


def _listed(value: Any, keys: Sequence[str]) -> Any:
    """Return objects as a list: a single one, or lists by key, as `datasets` stores a sequence of structures.

    Args:
        value: The value in a row.
        keys: Keys of which every object has one.
    """
    if not isinstance(value, Mapping):
        return value
    if not value or not any(isinstance(value.get(key), list) for key in keys):
        return [value] if value else []
    lists = {key: each for key, each in value.items() if isinstance(each, list)}
    # Shorter lists happen where a table drops trailing empty values.
    count = max(map(len, lists.values()), default=0)
    return [{key: each[at] for key, each in lists.items() if at < len(each)} for at in range(count)]


def _message(given: Any, column: str, notes: Notes, row: int) -> Message:
    if not isinstance(given, Mapping):
        raise RowError(f"{column!r} holds {kind_of(given)} among its messages; a message has a role and content")
    # A copy, so that the caller's row stays unchanged.
    message: Message = without_nulls(given)
    if "role" not in message and "from" in message:
        message["role"] = message.pop("from")
        if "content" not in message and "value" in message:
            message["content"] = message.pop("value")
    name = message.get("role")
    if not isinstance(name, str):
        raise RowError(f"{column!r} has a message without a role; a message has a role and content")
    role = ROLES.get(name.lower(), name.lower() if name.lower() in _KNOWN else name)
    message["role"] = role
    if name.lower() in CALLS:
        message["tool_calls"], message["content"] = _calls(message.get("content"), column), ""
    elif "function_call" in message and "tool_calls" not in message:
        message["tool_calls"] = _calls(message.pop("function_call"), column)
    if "tool_calls" in message:
        message["tool_calls"] = _calls(message["tool_calls"], column)
        if not message["tool_calls"]:
            del message["tool_calls"]
    message["content"] = _content(message, column)
    _weigh(message, column, notes, row)
    return message


def _content(message: Message, column: str) -> str:
    content = message.get("content")
    if content is None:
        if message.get("tool_calls"):
            return ""
        raise RowError(f"{column!r} has a message of the {message['role']} without content")
    if isinstance(content, str):
        # A lone surrogate cannot be encoded as UTF-8.
        if any("\ud800" <= character <= "\udfff" for character in content):
            raise RowError(f"{column!r} has a message with half of a character (a lone surrogate)")
        return content
    if isinstance(content, int | float) and not isinstance(content, bool):
        return str(content)
    if isinstance(content, list):
        return "".join(_part(part, column) for part in content)
    raise RowError(f"{column!r} has a message whose content is {kind_of(content)}, not a text")


def _part(part: Any, column: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, Mapping) else None
    text = part.get("text", part.get("content")) if isinstance(part, Mapping) else None
    if kind in _TEXT_PARTS and isinstance(text, str):
        return text
    what = f"a part of type {kind!r}" if isinstance(part, Mapping) else kind_of(part)
    raise RowError(f"{column!r} has a message whose content holds {what}; only text can be trained")


def _calls(value: Any, column: str) -> list[Any]:
    """Read tool calls; their arguments become objects, which chat templates write as JSON."""
    if isinstance(value, str):
        value = parsed(value, column)
    listed = _listed(value, ("type", "function", "name"))
    if not isinstance(listed, list) or not all(isinstance(call, Mapping) for call in listed):
        raise RowError(f"{column!r} has a tool call that is {kind_of(value)}, not an object with name and arguments")
    return [_call(call, column) for call in listed]


def _call(call: Mapping[str, Any], column: str) -> Message:
    call = dict(call)
    if "function" not in call and "name" in call:
        name = call.pop("name")
        arguments = call.pop("arguments", call.pop("parameters", {}))
        call = {"type": "function", **call, "function": {"name": name, "arguments": arguments}}
    function: Any = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RowError(f"{column!r} has a tool call without a function name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        arguments = parsed(arguments, column) if arguments.strip() else {}
    return {**call, "function": {**function, "arguments": without_nulls(arguments)}}


def _weigh(message: Message, column: str, notes: Notes, row: int) -> None:
    """Replace the keys that set whether a message is trained by `weight: 0`, if it is not; note unknown keys."""
    for key, value in message.items():
        if key not in _READ and not is_empty(value):
            notes.add(f"{key!r} of messages is left to the chat template", row)
    # Removed from the message: a chat template must not see them.
    given = {key: message.pop(key) for key in _WEIGHTS if key in message}
    for key, value in given.items():
        flag = read_flag(value)
        if flag is None:
            raise RowError(f"{column!r} has a message with {key}: {value!r}, and a message is trained (1) or not (0)")
        if message["role"] != "assistant":
            if flag:
                notes.add(f"{key!r} has no effect on messages of the {message['role']}: only answers are trained", row)
        elif not flag:
            message["weight"] = 0


class RowError(Exception):
    """A row is invalid; the message holds the reason."""


def kind_of(value: Any) -> str:
    """Describe the type of a value for an error message."""
    names = {type(None): "nothing (null)", list: "a list", dict: "a mapping", bool: "true or false", str: "a text"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")
