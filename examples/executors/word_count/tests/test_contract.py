"""The contract tests of every executor."""

from __future__ import annotations

from pathlib import Path

from tunefleet_word_count.executor import WordCountExecutor

from tunefleet.testing import JobContract


class TestWordCount(JobContract):
    executor = WordCountExecutor
    spec = {"data": {"items": ["one two two", "three"]}, "words": {"rest_s": 0.5}}
    bad_spec = {"data": {"items": ["one", "..."]}}
    children = ({"data": {"items": ["three", "only mine"]}, "words": {"rest_s": 0.5}},)

    def time_to_kill(self, folder: Path) -> bool:
        """Kill it after the first text and before the second."""
        counted = folder / "counted.jsonl"
        return counted.exists() and counted.read_text().count("\n") == 1
