"""The spec of the task type. Only validation; imports nothing that a server does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from tunefleet.spec.base import Block
from tunefleet.spec.tasks.base_task import ALWAYS_LEFT, BaseTaskSpec

REPORT = "words.csv"
"""The output file of a task."""


class TextsSpec(Block):
    """`spec.data`."""

    type: Literal["list"] = "list"
    """Source of the texts."""
    items: Annotated[tuple[str, ...], Field(min_length=1)]
    """Texts; `${STAGE.result…}` and `{node, path}` refer to results of other tasks."""


class WordsSpec(Block):
    """`spec.words`."""

    lower: bool = False
    """Ignore case."""
    shortest: Annotated[int, Field(ge=1, le=100)] = 1
    """Minimum word length, in letters."""
    rest_s: Annotated[float, Field(ge=0, le=60)] = 0.0
    """Seconds to wait after each text, for tests."""


class WordCountSpec(BaseTaskSpec):
    """`taskType: word_count`: counts the words of texts."""

    task_type: Literal["word_count"] = Field(default="word_count", alias="taskType")
    """`word_count`"""
    data: TextsSpec
    """The texts."""
    words: WordsSpec = WordsSpec()
    """Options of the count."""

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the outputs that `output.artifacts` accepts."""
        del blocks  # always the same
        return (*ALWAYS_LEFT, REPORT)
