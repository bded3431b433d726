"""Converts rows to token ids, with the tokens that are trained.

Training, evaluation and the preview share this code, so that the preview shows exactly what is trained. Prompt and
response are tokenized separately: the model gets the prompt in exactly the tokens of inference.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from tunefleet.analysis.dataset.messages import Message
from tunefleet.analysis.dataset.notes import Notes
from tunefleet.errors import DataError, ModelError
from tunefleet.workloads.data.chat_template import ChatRenderer, PromptTokenizer, Span
from tunefleet.workloads.data.formats import Chat, Example, Pair, Place, Plain, Shape, answers
from tunefleet.workloads.data.readers import numbered

# The label of a masked token, as PyTorch's cross entropy defines it.
IGNORED = -100
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Tokens:
    """One row: its ids, and which of them are trained."""

    ids: list[int]
    trained: list[bool]


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A tokenized dataset with `input_ids` and `labels`, and its counts."""

    dataset: datasets.Dataset
    rows: int
    dropped: int
    truncated: int
    tokens: int
    trained_tokens: int
    notes: tuple[str, ...] = ()


class Encoder:
    """Tokenizes examples."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        whole: bool = False,
        append_eos: bool = True,
        vocabulary: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._tokens = PromptTokenizer(tokenizer)
        self._whole = whole
        self._append_eos = append_eos
        self._vocabulary = vocabulary

    @functools.cached_property
    def renderer(self) -> ChatRenderer:
        """The chat template; only created for conversations."""
        return ChatRenderer(self.tokenizer)

    @property
    def options(self) -> tuple[Any, ...]:
        """The options that determine, with the tokenizer, the tokens of a row."""
        return self._whole, self._append_eos, self._vocabulary

    def encode(self, examples: Sequence[Example], notes: Notes) -> list[Tokens]:
        """Tokenize examples, all of one kind in a single call to the tokenizer.

        Raises:
            DataError: If the chat template rejects an example.
            ModelError: If the model has no embedding for a token, or chats cannot be rendered.
        """
        found: dict[int, Tokens] = {}
        kinds: tuple[tuple[type[Example], Callable[[list[Any], Notes], list[Tokens]]], ...] = (
            (Plain, self._texts),
            (Pair, self._pairs),
            (Chat, self._chats),
        )
        for kind, encode in kinds:
            places = [at for at, example in enumerate(examples) if isinstance(example, kind)]
            if places:
                # Grouped by kind, since a fast tokenizer processes a whole batch in parallel.
                found |= zip(places, encode([examples[at] for at in places], notes), strict=True)
        encoded = [found[at] for at in range(len(examples))]
        for example, tokens in zip(examples, encoded, strict=True):
            self.check(tokens.ids, example.place)
        return encoded

    def check(self, ids: Sequence[int], place: Place) -> None:
        """Reject tokens without an embedding in the model.

        Raises:
            ModelError: If there is such a token; names the row and the token.
        """
        highest = max(ids, default=0)
        if self._vocabulary is not None and highest >= self._vocabulary:
            token = self.tokenizer.convert_ids_to_tokens([highest])[0]
            raise ModelError(
                f"{place} has the token {token!r} (id {highest}), but the model has embeddings for "
                f"{self._vocabulary:,} tokens: its tokenizer has {len(self.tokenizer):,}.",
                hint="Use the tokenizer that belongs to the model, or resize the model's embeddings and save both.",
            )

    def prompt(self, example: Example) -> tuple[str, list[int], str]:
        """Return the prompt of an example: its text, its ids, and the dataset's answer.

        The prompt of a plain text is its first half. A chat whose only answer comes first has an empty prompt.
        """
        if isinstance(example, Pair):
            return *self.ask(example.prompt, None, example.place), example.response
        if isinstance(example, Chat):
            last = max(answers(example.messages))
            answer = str(example.messages[last]["content"])
            if last == 0:
                return "", [], answer
            return *self.ask(example.messages[:last], example.tools, example.place), answer
        ids = self._tokens.prompts([example.text], rendered=False)[0]
        half = len(ids) // 2
        return self.tokenizer.decode(ids[:half]), ids[:half], self.tokenizer.decode(ids[half:])

    def exchange(
        self, prompt: list[Message], answer: list[Message], tools: list[Any] | None, notes: Notes, place: Place
    ) -> tuple[list[int], list[int]]:
        """Tokenize a chat and an answer to it, separately.

        Raises:
            ModelError: If the template renders the prompt differently after the answer is added.
            DataError: If the template rejects the chat.
        """
        asked = self.renderer.render(prompt, tools, ask=True, where=str(place))
        whole = self.renderer.render([*prompt, *answer], tools, where=str(place))
        if not whole.startswith(asked):
            raise ModelError(
                f"{place}: the chat template of {self.tokenizer.name_or_path} renders a prompt differently after its "
                "answer is added, so the two cannot be separated.",
                hint="Use a template that does not rewrite earlier turns, or columns of texts.",
            )
        self._note_unrendered(Chat([*prompt, *answer], tools, place=place), whole, notes)
        ids = self._tokens.continuations([whole[len(asked) :]])[0]
        if answer[-1]["role"] == "assistant":
            ids = self._closed(ids, notes, place)
        before = self._tokens.prompts([asked], rendered=True)[0]
        self.check([*before, *ids], place)
        return before, ids

    def ask(self, prompt: str | list[Message], tools: list[Any] | None, place: Place) -> tuple[str, list[int]]:
        """Return a prompt as the model gets it: its text, and its ids.

        Raises:
            DataError: If the chat template rejects it.
            ModelError: If the model has no embedding for a token.
        """
        chat = isinstance(prompt, list)
        text = self.renderer.render(prompt, tools, ask=True, where=str(place)) if isinstance(prompt, list) else prompt
        (ids,) = self._tokens.prompts([text], rendered=chat)
        self.check(ids, place)
        return text, ids

    def _texts(self, examples: list[Plain], notes: Notes) -> list[Tokens]:
        del notes
        encoded = self._tokens.prompts([example.text for example in examples], rendered=False)
        return [Tokens(ids, [True] * len(ids)) for ids in map(self._ended, encoded)]

    def _pairs(self, examples: list[Pair], notes: Notes) -> list[Tokens]:
        del notes
        # Separately from the response: at inference the prompt is tokenized alone.
        prompts = self._tokens.prompts([example.prompt for example in examples], rendered=False)
        responses = map(self._ended, self._tokens.continuations([example.response for example in examples]))
        return [
            Tokens(prompt + response, [self._whole] * len(prompt) + [True] * len(response))
            for prompt, response in zip(prompts, responses, strict=True)
        ]

    def _chats(self, examples: list[Chat], notes: Notes) -> list[Tokens]:
        if not self._whole:
            examples = [
                replace(each, untrained=each.untrained | answers(each.messages[: each.prompt])) for each in examples
            ]
        if self._whole and not any(example.untrained for example in examples):
            texts = [self.renderer.render(each.messages, each.tools, where=str(each.place)) for each in examples]
            encoded = self._tokens.prompts(texts, rendered=True)
            found = [Tokens(ids, [True] * len(ids)) for ids in encoded]
        else:
            rendered = [self._rendered(example) for example in examples]
            texts = [text for text, _ in rendered]
            found = self._with_spans(texts, [spans for _, spans in rendered])
        for example, text in zip(examples, texts, strict=True):
            self._note_unrendered(example, text, notes)
        return [self._with_end(example, tokens, notes) for example, tokens in zip(examples, found, strict=True)]

    def _rendered(self, chat: Chat) -> tuple[str, list[Span]]:
        """Render a chat; with `whole`, everything except untrained answers is trained."""
        if not self._whole:
            return self.renderer.render_with_spans(chat)
        others = answers(chat.messages) - chat.untrained
        text, context = self.renderer.render_with_spans(replace(chat, untrained=others))
        edges = [0, *itertools.chain.from_iterable(context), len(text)]
        return text, [(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]

    def _with_spans(self, texts: list[str], spans: list[list[Span]]) -> list[Tokens]:
        # Only fast tokenizers return character offsets.
        if not self.tokenizer.is_fast:
            raise ModelError(
                f"The tokenizer of {self.tokenizer.name_or_path} has no character offsets, so "
                "the assistant's turns cannot be found.",
                hint="Use a model with a tokenizer.json, or set `training.completion_only_loss: false`.",
            )
        encoded = self.tokenizer(
            texts,
            add_special_tokens=False,
            return_attention_mask=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        return [
            self._row(text, ids, np.asarray(offsets).reshape(-1, 2), own)
            for text, ids, offsets, own in zip(
                texts, encoded["input_ids"], encoded["offset_mapping"], spans, strict=True
            )
        ]

    def _row(self, text: str, ids: list[int], offsets: np.ndarray[Any, Any], spans: list[Span]) -> Tokens:
        """Return a rendered chat, in pieces if a token crosses the beginning of an answer.

        At inference the prompt ends there, so a token must end there, too.
        """
        if not any(begin and _crosses(text, offsets, begin) for begin, _ in spans):
            return Tokens(ids, _inside(offsets[:, 0], spans))
        found: list[int] = []
        trained: list[bool] = []
        for begin, end in itertools.pairwise(sorted({0, len(text), *itertools.chain.from_iterable(spans)})):
            piece = [text[begin:end]]
            (more,) = self._tokens.continuations(piece) if begin else self._tokens.prompts(piece, rendered=True)
            found += more
            trained += [any(start <= begin < stop for start, stop in spans)] * len(more)
        return Tokens(found, trained)

    def _note_unrendered(self, chat: Chat, text: str, notes: Notes) -> None:
        for sentence in self.renderer.unrendered(chat, text):
            notes.add(sentence, chat.place.row)

    def _with_end(self, chat: Chat, tokens: Tokens, notes: Notes) -> Tokens:
        """Append the EOS token if the chat's last answer is trained and does not end with a special token."""
        last = len(chat.messages) - 1
        if chat.messages[last]["role"] != "assistant" or last in chat.untrained:
            return tokens
        closed, end = self._closed(tokens.ids, notes, chat.place), _end_of_trained(tokens.trained)
        if len(closed) > len(tokens.ids):
            # White space before the EOS token is trained as well: otherwise the model would never get to the EOS token.
            gap = not self.tokenizer.decode(tokens.ids[end:]).strip()
            return Tokens(closed, [*tokens.trained[:end], *[gap] * (len(tokens.ids) - end), True])
        if 0 < end < len(tokens.ids) and tokens.ids[end] in self._special:
            notes.add(
                "The chat template's generation markers exclude the token that ends an answer, so the model does "
                "not learn to stop",
                chat.place.row,
            )
        return tokens

    def _closed(self, ids: list[int], notes: Notes, place: Place) -> list[int]:
        """Append the EOS token to an answer that the template does not end with a special token."""
        end = self.tokenizer.eos_token
        for token in reversed(ids):
            if token in self._special:
                return ids
            if self.tokenizer.decode([token]).strip():
                break
        if end is None or not self._append_eos:
            why = "the tokenizer has no EOS token" if end is None else "append_eos is off"
            notes.add(f"Answers end with no special token, and {why}: the model does not learn to stop", place.row)
            return ids
        notes.add(f"The chat template ends answers with no special token: {end!r} is appended and trained", place.row)
        return [*ids, self.tokenizer.eos_token_id]

    @functools.cached_property
    def _special(self) -> frozenset[int]:
        added = self.tokenizer.added_tokens_decoder.items()
        return frozenset(self.tokenizer.all_special_ids) | {number for number, token in added if token.special}

    def _ended(self, ids: list[int]) -> list[int]:
        end = self.tokenizer.eos_token_id
        return ids if end is None or not self._append_eos or (ids and ids[-1] == end) else [*ids, end]


def _end_of_trained(trained: list[bool]) -> int:
    return max((at for at, is_trained in enumerate(trained) if is_trained), default=len(trained) - 1) + 1


def _crosses(text: str, offsets: np.ndarray[Any, Any], place: int) -> bool:
    """Return whether a token has characters on both sides of a position in the text.

    Byte-level tokenizers exclude the leading blank of a token from its offsets.
    """
    after = int(np.searchsorted(offsets[:, 1], place, side="right"))
    if after < len(offsets) and offsets[after, 0] < place:
        return True
    before = int(offsets[after - 1, 1]) if after else 0
    return before < place and text[before:place].isspace() and after < len(offsets)


def tokenize(
    rows: Iterable[Mapping[str, Any]], shape: Shape, encoder: Encoder, max_length: int, processes: int | None = None
) -> Tokenized:
    """Tokenize a dataset."""
    return _collect(encode_all(rows, shape, encoder, processes), shape, max_length)


def encode_all(
    rows: Iterable[Mapping[str, Any]], shape: Shape, encoder: Encoder, processes: int | None = None
) -> Iterator[Tokens]:
    """Tokenize rows one after the other, without a length limit."""
    work = functools.partial(_encode_batch, shape, encoder)
    if processes is None or processes == 1:
        yield from _noting(map(work, _batches(rows)), shape)
        return
    # fork: the tokenizer and the rows are inherited instead of pickled.
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from _noting(pool.imap(work, _batches(rows)), shape)


def _noting(batches: Iterable[tuple[list[Tokens], Notes]], shape: Shape) -> Iterator[Tokens]:
    for encoded, notes in batches:
        shape.notes.merge(notes)
        yield from encoded


@dataclass(frozen=True, slots=True)
class Clipped:
    """A row within the limit: its ids, its labels, and the number of trained tokens."""

    ids: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    counted: int


def clip(row: Tokens, max_length: int) -> Clipped | None:
    """Truncate a row to the limit; None if no trained token is left."""
    ids = np.asarray(row.ids[:max_length], dtype=np.int64)
    trained = np.asarray(row.trained[:max_length], dtype=bool)
    # The first token is never predicted.
    counted = int(trained[1:].sum())
    return Clipped(ids, np.where(trained, ids, IGNORED), counted) if counted else None


def _batches(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[tuple[int, Mapping[str, Any]]]]:
    """Split numbered rows into batches (`itertools.batched` needs Python 3.12)."""
    source = numbered(rows)
    while batch := list(itertools.islice(source, _BATCH)):
        yield batch


def _encode_batch(
    shape: Shape, encoder: Encoder, batch: list[tuple[int, Mapping[str, Any]]]
) -> tuple[list[Tokens], Notes]:
    notes = Notes()
    return encoder.encode([shape.read(number, row, notes) for number, row in batch], notes), notes


def _collect(encoded: Iterable[Tokens], shape: Shape, max_length: int) -> Tokenized:
    """Truncate rows to the limit, drop those without trained tokens, and return the rest as an Arrow table."""
    ids, labels, lengths = [], [], []
    total = dropped = truncated = trained_tokens = 0
    for row in encoded:
        total += 1
        truncated += len(row.ids) > max_length
        cut = clip(row, max_length)
        if cut is None:
            dropped += 1
            continue
        trained_tokens += cut.counted
        ids.append(cut.ids)
        labels.append(cut.labels)
        lengths.append(len(cut.ids))
    if not lengths:
        raise _nothing_left(shape, total, max_length)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    # Built from flat arrays: a list of Python lists would take several times the memory.
    table = pa.table(
        {
            name: pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(values)))
            for name, values in (("input_ids", ids), ("labels", labels))
        }
    )
    return Tokenized(
        dataset=datasets.Dataset(table),
        rows=len(lengths),
        dropped=dropped,
        truncated=truncated,
        tokens=int(offsets[-1]),
        trained_tokens=trained_tokens,
        notes=shape.notes.sentences,
    )


def _nothing_left(shape: Shape, total: int, max_length: int) -> DataError:
    if total == 0:
        return DataError(f"{shape.origin} has no rows.", hint="Choose a dataset, split or range that has rows.")
    return DataError(
        f"No row of {shape.origin} has a trained token within {max_length} tokens.",
        hint="Raise `training.max_seq_length`, or check the rows with `tunefleet preview`.",
    )


def _inside(starts: np.ndarray[Any, Any], spans: list[tuple[int, int]]) -> list[bool]:
    inside = np.zeros(len(starts), dtype=bool)
    for start, end in spans:
        inside |= (starts >= start) & (starts < end)
    trained: list[bool] = inside.tolist()
    return trained
