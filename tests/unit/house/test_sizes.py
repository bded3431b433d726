"""Files and functions fit the eye; `make check` looks at those of the tree."""

from __future__ import annotations

from pathlib import Path

from scripts import check_sizes


def test_a_long_file_and_long_functions_are_named(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/long.py").write_text("def f():\n" + "    pass\n" * 600)
    file_fault, function_fault = check_sizes.faults(tmp_path)
    assert file_fault == "src/long.py: 601 lines; at most 500 are allowed"
    assert "src/long.py:1 f (601)" in function_fault


def test_the_percentile_is_a_length_that_occurs() -> None:
    assert check_sizes.percentile([], 0.95) == 0
    assert check_sizes.percentile([7], 0.95) == 7
    assert check_sizes.percentile([*range(1, 101)], 0.95) == 95
