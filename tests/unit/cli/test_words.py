from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tunefleet.cli import formatting, options
from tunefleet.errors import InputError


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(None, "–"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (800 << 20, "800 MiB"), (3 << 40, "3.0 TiB")],
)
def test_sizes(size_bytes: float | None, text: str) -> None:
    assert formatting.size(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (float("inf"), "–"), (-3, "0s"), (42, "42s"), (3725, "1h 2m"), (3 * 86_400 + 7200, "3d 2h")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert formatting.duration(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(None, "–"), (0.0042, "4.2ms"), (0.151, "151ms"), (1.5, "1.50s")])
def test_step_times(seconds: float | None, text: str) -> None:
    assert formatting.step_time(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(5, "5s"), (600, "10m"), (7200, "2h"), (6 * 86_400, "6d"), (-4, "0s")])
def test_ages(seconds: int, text: str) -> None:
    now = datetime(2026, 1, 10, tzinfo=UTC)
    assert formatting.age(now - timedelta(seconds=seconds), now=now) == text
    assert formatting.age(None) == "–"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        ("NaN", "NaN"),
        (3.0, "3"),
        (12_345.6, "12,346"),
        (4.12341, "4.1234"),
        (5e-7, "5e-07"),
        (0.25, "0.25"),
    ],
)
def test_numbers(value: float | str | None, text: str) -> None:
    assert formatting.number(value) == text


def test_counts() -> None:
    assert (formatting.plural(1, "task"), formatting.plural(2, "task")) == ("1 task", "2 tasks")


def test_sets_are_read_as_yaml_and_may_start_with_spec() -> None:
    pairs = ["training.learning_rate=1e-4", "spec.lora.r=32", "data.path=./x=y.jsonl", "training.bf16=true"]
    assert options.parse_sets(pairs) == {
        "training.learning_rate": 1e-4,
        "lora.r": 32,
        "data.path": "./x=y.jsonl",
        "training.bf16": True,
    }
    assert options.parse_sets(None) == {}
    with pytest.raises(InputError, match="is not FIELD=VALUE"):
        options.parse_sets(["lora.r"])


def test_ages_of_the_command_line() -> None:
    assert [options.parse_duration(text) for text in ("90", "1.5h", "7d", "2w")] == [90, 5400, 604_800, 1_209_600]
    with pytest.raises(InputError, match="not a duration"):
        options.parse_duration("soon")
