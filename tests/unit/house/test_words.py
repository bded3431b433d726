"""The words that texts and names do not use are found where a person reads them, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import check_words

TABLE = """# Glossary

## Words that are not used

| Where | Not | But |
|---|---|---|
| text | mend, way out | fix |
| name | courier | delivery |
"""
CODE = '''"""Mend it."""

_courier = "a way out of it"  # not a mender
GIVEN = "mend"


def courier(told: str) -> str:
    """Return `mend`."""
    return told
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/glossary.md").write_text(TABLE)
    (tmp_path / "docs/page.md").write_text("To mend it:\n\n```\nmend\n```\n\n`mend` and [this](mend.md).\n")
    source = tmp_path / "src/tunefleet"
    source.mkdir(parents=True)
    (source / "one.py").write_text(CODE)
    return tmp_path


def test_they_are_found_in_prose_texts_and_names(tree: Path) -> None:
    found = [(hit.where, hit.place, hit.word) for hit in check_words.hits(tree)]
    assert found == [
        ("text", "docs/page.md:1", "mend"),
        ("text", "src/tunefleet/one.py:1", "Mend"),
        ("text", "src/tunefleet/one.py:3", "way out"),
        ("name", "src/tunefleet/one.py:7", "courier"),
        ("name", "src/tunefleet/one.py:3", "_courier"),
    ]


def test_a_row_of_another_shape_is_an_error(tree: Path) -> None:
    (tree / "docs/glossary.md").write_text(TABLE + "| words | mend | fix |\n")
    with pytest.raises(ValueError, match="a row is"):
        check_words.rules(tree / "docs/glossary.md")


def test_the_glossary_of_this_tree_is_read() -> None:
    assert {rule.where for rule in check_words.rules()} == {"text", "name"}
