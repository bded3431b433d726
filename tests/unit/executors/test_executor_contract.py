"""The contract asks what it has to, and the example that others copy keeps it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tunefleet.executors.inference import InferenceExecutor
from tunefleet.testing import JobContract

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "executors" / "word_count" / "src"


class _Alone(JobContract):
    executor = InferenceExecutor
    spec = {"data": {"type": "list", "items": ["one"]}}


def test_a_kind_that_merges_needs_children(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="inference merges: set children"):
        _Alone().test_each_task_of_a_shared_run_gets_its_own(tmp_path)


def test_what_the_example_has_counted_outlives_a_kill_while_it_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    program = importlib.import_module("tunefleet_word_count.program")
    file = tmp_path / "counted.jsonl"
    whole = '["one", {"one": 1}]\n["two", {"two": 1}]\n'
    file.write_text(whole + '["thr')

    class KilledError(Exception):
        """Where a kill may come: the new text is written, and not in its place."""

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as dying:
        dying.setattr(Path, "replace", killed)
        with pytest.raises(KilledError):
            program._Kept(file)
    assert file.read_text().startswith(whole)
    assert list(program._Kept(file).counts) == ["one", "two"]
    assert file.read_text() == whole, "a torn last line is left out"
