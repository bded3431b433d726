"""Where the tokens of a text are."""

from __future__ import annotations

from typing import Any

from tunefleet.errors import ModelError


def offsets_of(tokenizer: Any, text: str) -> list[tuple[int, int]]:
    """Return where the tokens of a text begin and end.

    Raises:
        ModelError: If the tokenizer is one of the old ones, which do not know.
    """
    if hasattr(tokenizer, "encode_batch"):  # of the tokenizers library itself
        return [(int(begin), int(end)) for begin, end in tokenizer.encode(text, add_special_tokens=False).offsets]
    if not tokenizer.is_fast:
        raise ModelError(
            "The model's tokenizer does not know where its tokens are.", hint="Use a model with a tokenizer.json."
        )
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [(int(begin), int(end)) for begin, end in found["offset_mapping"]]
