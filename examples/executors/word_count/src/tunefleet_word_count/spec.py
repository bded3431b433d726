"""What a document of the kind may say. Only checks: no work, and nothing imported that a server would not need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from tunefleet.spec.base import Block
from tunefleet.spec.tasks.base_task import ALWAYS_LEFT, BaseTaskSpec

REPORT = "words.csv"
"""The file that a task of the kind leaves."""


class TextsSpec(Block):
    """`spec.data`."""

    type: Literal["list"] = "list"
    """Where the texts come from."""
    items: Annotated[tuple[str, ...], Field(min_length=1)]
    """Texts; `${STAGE.result…}` and `{node, path}` stand for what other tasks have found."""


class WordsSpec(Block):
    """`spec.words`."""

    lower: bool = False
    """Take capitals for small letters."""
    shortest: Annotated[int, Field(ge=1, le=100)] = 1
    """Letters of the shortest word that counts."""
    rest_s: Annotated[float, Field(ge=0, le=60)] = 0.0
    """Seconds to rest after each text; for trying out what a kill does."""


class WordCountSpec(BaseTaskSpec):
    """`taskType: word_count`: counts the words of texts."""

    task_type: Literal["word_count"] = Field(default="word_count", alias="taskType")
    """`word_count`"""
    data: TextsSpec
    """The texts."""
    words: WordsSpec = WordsSpec()
    """What counts."""

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what a task leaves, as `output.artifacts` may name it."""
        del blocks  # always the same
        return (*ALWAYS_LEFT, REPORT)
