"""Turn rows into token ids, and say for each token whether it counts in the loss.

The same code serves training, held-out evaluation and `preview`, so that what a user sees is what is learnt. Prompt
and response are tokenised apart: the model meets the prompt in exactly the tokens that it will meet when it is used.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from tunefleet.errors import DataError, ModelError
from tunefleet.programs.data.chat import ChatRenderer
from tunefleet.programs.data.shapes import Chat, Example, Pair, Plain, Shape

IGNORED = -100
"""The label of a token that does not count, as PyTorch's cross entropy defines it."""
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Tokens:
    """One row: its ids, and which of them count in the loss."""

    ids: list[int]
    trained: list[bool]


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A tokenised dataset with `input_ids` and `labels`, and what happened on the way.

    Args:
        dataset: One row each, in the order of the source.
        rows: Rows that are left.
        dropped: Rows of which the limit left no token that counts.
        truncated: Rows that were longer than the limit.
        tokens: Tokens of all rows that are left.
        trained_tokens: Those that count in the loss.
    """

    dataset: datasets.Dataset
    rows: int
    dropped: int
    truncated: int
    tokens: int
    trained_tokens: int


class Encoder:
    """Tokenises examples of one shape.

    Args:
        tokenizer: The model's.
        whole: Count every token, not only the response or the assistant's turns.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, whole: bool = False) -> None:
        self._tokenizer = tokenizer
        self._whole = whole

    @functools.cached_property
    def renderer(self) -> ChatRenderer:
        """The chat template; only made when there is a conversation."""
        return ChatRenderer(self._tokenizer)

    def encode(self, examples: list[Example]) -> list[Tokens]:
        """Tokenise examples, all of the same kind, in one call to the tokenizer."""
        if isinstance(examples[0], Chat):
            return self._chats([example for example in examples if isinstance(example, Chat)])
        if isinstance(examples[0], Pair):
            return self._pairs([example for example in examples if isinstance(example, Pair)])
        return self._texts([example for example in examples if isinstance(example, Plain)])

    def prompt(self, example: Example) -> tuple[str, list[int], str | None]:
        """Return what the model is asked for an example: the text, its ids, and the answer of the dataset.

        A plain text is asked for its continuation: its first half is the prompt.
        """
        if isinstance(example, Pair):
            return example.prompt, self._opening([example.prompt])[0], example.response
        if isinstance(example, Chat):
            last = max(i for i, message in enumerate(example.messages) if message["role"] == "assistant")
            text = self.renderer.render(example.messages[:last], example.tools, ask=True)
            return text, self._bare([text])[0], str(example.messages[last]["content"])
        ids = self._opening([example.text])[0]
        half = len(ids) // 2
        return self._tokenizer.decode(ids[:half]), ids[:half], self._tokenizer.decode(ids[half:])

    def _texts(self, examples: list[Plain]) -> list[Tokens]:
        return [
            Tokens(ids, [True] * len(ids))
            for ids in map(self._ended, self._opening([example.text for example in examples]))
        ]

    def _pairs(self, examples: list[Pair]) -> list[Tokens]:
        prompts = self._opening([example.prompt for example in examples])
        responses = map(self._ended, self._bare([example.response for example in examples]))
        return [
            Tokens(prompt + response, [self._whole] * len(prompt) + [True] * len(response))
            for prompt, response in zip(prompts, responses, strict=True)
        ]

    def _chats(self, examples: list[Chat]) -> list[Tokens]:
        if self._whole:
            texts = [self.renderer.render(example.messages, example.tools) for example in examples]
            return [Tokens(ids, [True] * len(ids)) for ids in self._bare(texts)]
        if not self._tokenizer.is_fast:
            raise ModelError(
                f"The tokenizer of {self._tokenizer.name_or_path} does not tell where its tokens stand in the text, so "
                "the assistant's turns cannot be found.",
                hint="Use a model with a tokenizer.json, or set `training.completion_only_loss: false`.",
            )
        rendered = [self.renderer.render_with_spans(example) for example in examples]
        encoded = self._tokenizer(
            [text for text, _ in rendered],
            add_special_tokens=False,
            return_attention_mask=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        return [
            Tokens(ids, _inside(np.asarray(offsets).reshape(-1, 2)[:, 0], spans))
            for ids, offsets, (_, spans) in zip(encoded["input_ids"], encoded["offset_mapping"], rendered, strict=True)
        ]

    def _opening(self, texts: list[str]) -> list[list[int]]:
        """Tokenise the beginning of a sequence: with what the tokenizer puts in front, without what it puts behind."""
        encoded: list[list[int]] = self._tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"]
        end = self._tokenizer.eos_token_id
        return [ids[:-1] if ids and ids[-1] == end else ids for ids in encoded]

    def _bare(self, texts: list[str]) -> list[list[int]]:
        encoded = self._tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def _ended(self, ids: list[int]) -> list[int]:
        end = self._tokenizer.eos_token_id
        return ids if end is None or (ids and ids[-1] == end) else [*ids, end]


def tokenize(
    rows: Iterable[Mapping[str, Any]], shape: Shape, encoder: Encoder, max_length: int, processes: int | None = None
) -> Tokenized:
    """Tokenise a dataset.

    Args:
        rows: As read.
        shape: What the rows are.
        encoder: How they become tokens.
        max_length: Tokens after which a row is cut.
        processes: Fork so many processes for it; only worth it for long conversations in great number.

    Raises:
        DataError: If a row cannot be used, or if no row is left.
    """
    return _collect(encode_all(rows, shape, encoder, processes), shape, max_length)


def encode_all(
    rows: Iterable[Mapping[str, Any]], shape: Shape, encoder: Encoder, processes: int | None = None
) -> Iterator[Tokens]:
    """Tokenise rows one after the other, without a limit to their length.

    Raises:
        DataError: If a row cannot be used.
    """
    work = functools.partial(_encode_batch, shape, encoder)
    if processes is None or processes == 1:
        for batch in _batches(rows):
            yield from work(batch)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for encoded in pool.imap(work, _batches(rows)):
            yield from encoded


@dataclass(frozen=True, slots=True)
class Clipped:
    """A row within the limit: its ids, its labels, and how many of them count in the loss."""

    ids: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    counted: int


def clip(row: Tokens, max_length: int) -> Clipped | None:
    """Cut a row to the limit; `None` if nothing of what is left would be learnt."""
    ids = np.asarray(row.ids[:max_length], dtype=np.int64)
    trained = np.asarray(row.trained[:max_length], dtype=bool)
    # The first token is never predicted.
    counted = int(trained[1:].sum())
    return Clipped(ids, np.where(trained, ids, IGNORED), counted) if counted else None


def _batches(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, list[Mapping[str, Any]]]]:
    """Cut rows into numbered batches (`itertools.batched` comes with Python 3.12)."""
    source = iter(rows)
    for start in itertools.count(1, _BATCH):
        batch = list(itertools.islice(source, _BATCH))
        if not batch:
            return
        yield start, batch


def _encode_batch(shape: Shape, encoder: Encoder, batch: tuple[int, list[Mapping[str, Any]]]) -> list[Tokens]:
    start, rows = batch
    return encoder.encode([shape.read(number, row) for number, row in enumerate(rows, start=start)])


def _collect(encoded: Iterable[Tokens], shape: Shape, max_length: int) -> Tokenized:
    """Cut rows to the limit, drop those of which nothing counts, and lay the rest out as an Arrow table."""
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
    )


def _nothing_left(shape: Shape, total: int, max_length: int) -> DataError:
    if total == 0:
        return DataError(f"{shape.origin} has no rows.", hint="Name a dataset, split or range that has some.")
    return DataError(
        f"No row of {shape.origin} has a token to learn within {max_length} tokens.",
        hint="Raise `training.max_seq_length`, or look at the rows with `tunefleet preview`.",
    )


def _inside(starts: np.ndarray[Any, Any], spans: list[tuple[int, int]]) -> list[bool]:
    inside = np.zeros(len(starts), dtype=bool)
    for start, end in spans:
        inside |= (starts >= start) & (starts < end)
    trained: list[bool] = inside.tolist()
    return trained
