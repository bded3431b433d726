"""Converts prompts and answers to token ids, for training, evaluation, inference and chat alike."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

_ANCHORS: Final = ("\n", "|", "a")


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
