"""Renders conversations with a tokenizer's chat template, and converts prompts and answers to token ids.

Tried in this order: the template marks the assistant's turns itself (`{% generation %}`); TRL has the same template
with markers; the conversation is rendered turn by turn, which works if a longer conversation starts with the text of a
shorter one. If none works, the template is rejected: training on everything would be silent and wrong.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from tunefleet.analysis.dataset.messages import Message
from tunefleet.errors import DataError, ModelError, TunefleetError
from tunefleet.workloads.data.formats import Chat, answers

Span = tuple[int, int]
_MARKERS = re.compile(r"\{%-?\s*generation\s*-?%\}")
_WORD = re.compile(r"\w+")
_PROBE = "zqxprobe"
_ANSWER = ("content", "tool_calls")
"""Keys that must be rendered for an answer to be complete; many templates omit the reasoning on purpose."""
_ANCHORS: Final = ("\n", "|", "a")


class ChatRenderer:
    """Renders conversations for one tokenizer.

    A tokenizer with several templates uses `tool_use` for conversations with tools and `default` for the others.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.chat_template:
            raise ModelError(
                f"The tokenizer of {tokenizer.name_or_path} has no chat template, so conversations cannot be rendered.",
                hint="Use an instruct model, or columns of prompts and responses.",
            )
        self._tokenizer = tokenizer
        self._templates: dict[bool, str] = {}
        self._describes_tools: bool | None = None
        self._calls = CallContent(self.render)
        self._probed: set[tuple[str, str, bool, bool]] = set()

    def template(self, tools: Sequence[Any] | None = None) -> str:
        """Return the template for conversations with these tools, with markers if possible.

        Raises:
            ModelError: If the tokenizer has several templates and none for these.
        """
        found = self._templates.get(bool(tools))
        if found is None:
            try:
                own: str = self._tokenizer.get_chat_template(tools=list(tools) if tools else None)
            except ValueError as error:
                raise ModelError(f"The tokenizer of {self._tokenizer.name_or_path}: {error}") from error
            # The template's own markers take precedence over TRL's copy.
            known = None if _MARKERS.search(own) else _known_to_trl(self._tokenizer, own)
            found = self._templates[bool(tools)] = known or own
        return found

    @property
    def marks_turns(self) -> bool:
        """Whether the template for conversations without tools marks the assistant's turns."""
        return _MARKERS.search(self.template()) is not None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None = None,
        *,
        ask: bool = False,
        where: str = "",
        **options: Any,
    ) -> str:
        """Render a conversation as text.

        Raises:
            DataError: If the template rejects the conversation.
        """
        return self._render(messages, tools, where, ask=ask, **options)[0]

    def render_with_spans(self, chat: Chat) -> tuple[str, list[Span]]:
        """Render a conversation and return the character spans (start, end) to be trained."""
        assistants = sorted(answers(chat.messages))
        if _MARKERS.search(self.template(chat.tools)):
            text, spans = self._render(chat.messages, chat.tools, str(chat.place), spans=True)
            if not chat.untrained:
                return text, spans
            if len(spans) == len(assistants):
                pairs = zip(assistants, spans, strict=True)
                return text, [span for at, span in pairs if at not in chat.untrained]
            context = [self._turn(chat, at, text) for at in sorted(chat.untrained)]
            return text, [span for span in spans if not any(begin <= span[0] < end for begin, end in context)]
        text = self.render(chat.messages, chat.tools, where=str(chat.place))
        return text, [self._turn(chat, at, text) for at in assistants if at not in chat.untrained]

    def unrendered(self, chat: Chat, text: str) -> list[str]:
        """Return the parts of a conversation that the template omits."""
        found = []
        for at, message in enumerate(chat.messages):
            missing = list(self._lost(chat, at, message, text))
            for lost in missing:
                if message["role"] == "assistant" and at not in chat.untrained and lost in _ANSWER:
                    raise DataError(
                        f"{chat.place}: the chat template of {self._tokenizer.name_or_path} does not write the "
                        f"{lost} of an answer, so it cannot be trained.",
                        hint="Use a model whose template supports it, or convert the rows to messages with text.",
                    )
                found.append(f"The chat template does not write the {lost} of messages of the {message['role']}")
            if "content" not in missing and not _writes(text, message["content"]):
                found.append(f"The chat template rewrites the content of messages of the {message['role']}")
        if chat.tools:
            if self._describes_tools is None:
                self._describes_tools = self.render(chat.messages, None, where=str(chat.place)) != text
            if not self._describes_tools:
                found.append("The chat template does not describe tools: the column 'tools' has no effect")
        return found

    def _lost(self, chat: Chat, at: int, message: Message, text: str) -> Iterator[str]:
        """Yield the keys of a message that the template does not write.

        The first message of a role with a key is rendered with another word in it: if the template reads the key, the
        text changes. For later messages the longest word must be in the text, else they are rendered in this way as
        well.
        """
        for key, value in _texts(message):
            if not value.strip():
                continue  # templates omit the empty content of a tool call
            kind = (message["role"], key, bool(chat.tools), "tool_calls" in message)
            word = max(_WORD.findall(value), key=len, default="")
            if kind in self._probed and (not word or word in text):
                continue
            other = [dict(each) for each in chat.messages]
            other[at][key] = _changed(message[key])
            try:
                if self.render(other, chat.tools, where=str(chat.place)) == text:
                    yield key
                    continue
            except DataError:
                pass  # a template that rejects the change has read the key
            # One probe per role and key is enough: it costs a rendering of the chat.
            self._probed.add(kind)

    def _turn(self, chat: Chat, at: int, text: str) -> Span:
        """Find the characters of one message of the assistant by rendering the conversation up to it."""
        after = self.render(chat.messages[: at + 1], chat.tools, where=str(chat.place))
        if at:
            before = self.render(chat.messages[:at], chat.tools, ask=True, where=str(chat.place))
        else:
            before = self._header(chat, after)
        # Without this property, the difference of two renderings is not the answer.
        if not (text.startswith(after) and after.startswith(before)):
            raise ModelError(
                f"{chat.place}: the chat template of {self._tokenizer.name_or_path} rewrites earlier turns and has no "
                "{% generation %} markers, so the assistant's tokens cannot be distinguished from the others.",
                hint="Add the markers to its chat_template.jinja, or set `training.completion_only_loss: "
                "false` to train on whole conversations.",
            )
        return len(before), len(after)

    def _header(self, chat: Chat, after: str) -> str:
        """Return what the template writes before a first message's content: the part that does not depend on it."""
        first = chat.messages[0]
        # Two different first letters, so that the shared prefix cannot reach into the content.
        others = [{**first, "content": letter + first["content"]} for letter in "az"]
        texts = [self.render([other], chat.tools, where=str(chat.place)) for other in others]
        shared = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(after, *texts, strict=False))
        return after[: len(list(shared))]

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        where: str,
        *,
        ask: bool = False,
        spans: bool = False,
        **options: Any,
    ) -> tuple[str, list[Span]]:
        try:
            texts, found = render_jinja_template(
                conversations=[self._calls.fitted(messages, tools)],
                tools=list(tools) if tools else None,
                chat_template=self.template(tools),
                return_assistant_tokens_mask=spans,
                add_generation_prompt=ask,
                **{**self._tokenizer.special_tokens_map, **options},
            )
        except ModelError:
            raise
        except Exception as error:
            place = f"{where}: the" if where else "The"
            raise DataError(
                f"{place} chat template of {self._tokenizer.name_or_path} rejects the conversation: "
                f"{_describe_error(error)}."
            ) from error
        return texts[0], [(start, end) for start, end in found[0]] if spans else []


def _writes(text: str, content: str) -> bool:
    """Return whether a rendered chat holds a content, ignoring white space."""
    return content.strip() in text or "".join(content.split()) in "".join(text.split())


def _texts(message: Message) -> list[tuple[str, str]]:
    """Return the texts of a message by their keys."""
    texts = [
        (key, message[key]) for key in ("content", "reasoning_content", "thinking") if isinstance(message.get(key), str)
    ]
    return texts + [("tool_calls", str(call["function"]["name"])) for call in message.get("tool_calls") or ()]


def _changed(value: Any) -> Any:
    """Return the text of a message, or its tool calls, with another word in it."""
    if isinstance(value, str):
        return f"{_PROBE} {value} {_PROBE}"
    return [{**call, "function": {**call["function"], "name": f"{call['function']['name']}{_PROBE}"}} for call in value]


def _describe_error(error: Exception) -> str:
    text = str(error).strip().rstrip(".")
    return text if text and not isinstance(error, KeyError | IndexError) else f"{type(error).__name__} {text}".strip()


def _known_to_trl(tokenizer: PreTrainedTokenizerBase, template: str) -> str | None:
    if template != tokenizer.chat_template:
        return None  # TRL looks at the default template only
    # Imports torch, which a preview of a template with markers does not need.
    from trl.chat_template_utils import get_training_chat_template

    try:
        known: str | None = get_training_chat_template(tokenizer)
    except ValueError:
        return None
    return known


class CallContent:
    """Replaces an empty text next to tool calls by None for templates that write the calls only then."""

    def __init__(self, render: Callable[[list[Message], Sequence[Any] | None], str]) -> None:
        self._render = render
        self._wants_null: dict[bool, bool] = {}

    def fitted(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> list[Message]:
        """Return messages in the form that the template reads."""
        bare = {at for at, each in enumerate(messages) if each.get("tool_calls") and not each.get("content")}
        if not bare:
            return list(messages)
        wanted = self._wants_null.get(bool(tools))
        if wanted is None:
            self._wants_null[bool(tools)] = False  # while the template is probed
            wanted = not self._writes("", tools) and self._writes(None, tools)
            self._wants_null[bool(tools)] = wanted
        return [{**each, "content": None} if wanted and at in bare else each for at, each in enumerate(messages)]

    def _writes(self, content: str | None, tools: Sequence[Any] | None) -> bool:
        call = {"type": "function", "id": "zqxprobe0", "function": {"name": _PROBE, "arguments": {}}}
        answer: Message = {"role": "assistant", "content": content, "tool_calls": [call]}
        try:
            return _PROBE in self._render([{"role": "user", "content": "a"}, answer], tools)
        except TunefleetError:
            return False


class PromptTokenizer:
    """Tokenizes prompts and their continuations."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def prompts(self, texts: Sequence[str], *, rendered: bool) -> list[list[int]]:
        """Tokenize the beginnings of sequences.

        A rendered chat already has all special tokens of its template, so the tokenizer adds none. A text gets the
        special tokens that the tokenizer puts in front, unless it starts with the BOS token already, and none at the
        end.
        """
        if rendered:
            return self._ids(texts, special=False)
        begin, end = self._tokenizer.bos_token, self._tokenizer.eos_token
        found = self._ids(texts, special=True)
        begun = [at for at, text in enumerate(texts) if begin and text.startswith(begin)]
        for at, ids in zip(begun, self._ids([texts[at] for at in begun], special=False), strict=True):
            found[at] = ids
        end_id = self._tokenizer.eos_token_id
        return [
            ids[:-1] if len(ids) > 1 and ids[-1] == end_id and not (end and text.endswith(end)) else ids
            for ids, text in zip(found, texts, strict=True)
        ]

    def continuations(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize continuations of a prompt: without special tokens, and without a leading blank that they lack.

        SentencePiece-like tokenizers put a blank before every text. A continuation must not get one, so it is tokenized
        after a character that it does not merge with, whose tokens are removed again.
        """
        if not self._adds_blank:
            return self._ids(texts, special=False)
        found: dict[int, list[int]] = {}
        for anchor in _ANCHORS:
            left = [at for at, text in enumerate(texts) if at not in found]
            if left:
                # All texts in a single call: a fast tokenizer processes them in parallel.
                front, *behind = self._ids([anchor, *(anchor + texts[at] for at in left)], special=False)
                found |= {at: ids[len(front) :] for at, ids in zip(left, behind, strict=True) if _starts(ids, front)}
        # A text that merges with every anchor keeps its blank.
        left = [at for at in range(len(texts)) if at not in found]
        found |= dict(zip(left, self._ids([texts[at] for at in left], special=False), strict=True))
        return [found[at] for at in range(len(texts))]

    @functools.cached_property
    def _adds_blank(self) -> bool:
        alone, later = self._ids(["a", "\na"], special=False)
        # Probed instead of read from the configuration, which differs between tokenizer classes.
        return alone != later[-len(alone) :]

    def _ids(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        if not texts:
            return []
        encoded: list[list[int]] = self._tokenizer(
            list(texts), add_special_tokens=special, return_attention_mask=False, verbose=False
        )["input_ids"]
        return encoded


def _starts(ids: list[int], front: list[int]) -> bool:
    return ids[: len(front)] == front
