"""The memory grammar."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefleet.spec import format_memory, parse_memory
from tunefleet.spec.options import resources

GI = 1 << 30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("32Gi", 32 * GI),
        ("32GiB", 32 * GI),
        ("32GB", 32 * GI),
        ("32g", 32 * GI),
        (" 32 gib ", 32 * GI),
        ("1.5Gi", 3 * GI // 2),
        ("64.5Gi", 129 * GI // 2),
        (".5T", 512 * GI),
        ("0.1K", 102),
        ("1024", 1024),
        ("10B", 10),
        (4096, 4096),
        (1e9, 10**9),
        ("1P", 1 << 50),
    ],
)
def test_what_is_understood(text: object, expected: int) -> None:
    assert parse_memory(text) == expected


@pytest.mark.parametrize(
    "text", ["", "Gi", "8c", "32 Gigs", "-1Gi", "1,5Gi", "1e3Gi", "1..5Gi", "٣Gi", "0", 0, -5, True, None, [], "9999P"]
)
def test_what_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="memory"):
        parse_memory(text)


@pytest.mark.parametrize("text", ["9" * 800_000, f"1{' ' * 800_000}x", f"0.{'1' * 39}", f"{' ' * 40}1"])
def test_a_long_text_is_refused_before_any_number_is_read(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_MEMORY", None)
    monkeypatch.setattr(resources, "Decimal", None)
    with pytest.raises(ValueError, match="is not an amount of memory"):
        parse_memory(text)


@given(st.integers(1, 1 << 60))
def test_writing_and_reading_again(size_bytes: int) -> None:
    assert parse_memory(format_memory(size_bytes)) == size_bytes


@given(
    st.decimals(Decimal("0.001"), Decimal(1000), places=3),
    st.sampled_from(["K", "M", "G", "T"]),
    st.sampled_from(["", "i"]),
    st.sampled_from(["", "B", "b"]),
)
def test_units_are_binary_in_any_spelling(number: Decimal, unit: str, i: str, b: str) -> None:
    exact = number * 1024 ** ("KMGT".index(unit) + 1)
    for text in (f"{number}{unit}{i}{b}", f"{number}{unit.lower()}{i}{b}"):
        assert abs(parse_memory(text) - exact) <= Decimal("0.5")


@given(st.text(max_size=12))
def test_nothing_is_dropped_silently(text: str) -> None:
    size_bytes, message = 1, "memory"
    try:
        size_bytes = parse_memory(text)
    except ValueError as error:
        message = str(error)
    assert size_bytes >= 1
    assert "memory" in message
