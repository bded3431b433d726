"""What `scripts.check_layout` finds, tried on packages of a few files."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import check_layout

LONG = "x = 1\n" * 50


def found(source: Path) -> dict[str, list[str]]:
    """Return what is wrong by its kind."""
    told: dict[str, list[str]] = {}
    for kind, text in check_layout.faults(source):
        told.setdefault(kind, []).append(text)
    return told


def fill(source: Path, **files: str) -> Path:
    for name, text in files.items():
        path = source / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return source


@pytest.mark.parametrize(
    ("files", "kind", "said"),
    [
        ({"short": "x = 1\n"}, "files that are too short", "short.py: 1 lines"),
        ({"long": "x = 1\n" * 601}, "files that are too long", "long.py: 601 lines"),
        (
            {"program": LONG + '\nif __name__ == "__main__":\n    main()\n\n\ndef late():\n    pass\n'},
            "code after the main guard",
            "program.py",
        ),
        ({"talks": LONG}, "names that are no things", "talks.py"),
        ({"a_taking": LONG}, "names that are no things", "a_taking.py"),
        ({f"{name}__journal": LONG for name in "abcd"}, "stems that repeat", "journal.py: a/journal.py"),
        ({f"m{number}": LONG for number in range(26)}, "folders with too many files", "26 files"),
        ({"one": "import tune.two\n" + LONG, "two": "from tune import one\n" + LONG}, "modules in circles", "tune.one"),
        (
            {"one": "def f():\n    from tune import two\n" + LONG, "two": "from tune.one import f\n" + LONG},
            "modules in circles",
            "tune.one",
        ),
        ({"long_one": "def f():\n" + "    x = 1\n" * 60}, "functions that are too long", "up to 61 lines"),
    ],
)
def test_a_fault_is_found(tmp_path: Path, files: dict[str, str], kind: str, said: str) -> None:
    told = found(fill(tmp_path / "tune", **files))
    assert said in told[kind][0]


def test_the_number_of_files_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = fill(tmp_path / "tune", one=LONG, two=LONG)
    monkeypatch.setattr(check_layout, "MAX_PACKAGE_FILES", 1)
    assert found(source) == {"packages with too many files": ["2 files; at most 1: merge fragments"]}


def test_a_clean_package_has_none(tmp_path: Path) -> None:
    source = fill(tmp_path / "tune", one="import tune.two\n" + LONG, two=LONG, a__models=LONG, training=LONG)
    assert found(source) == {}


def test_more_and_fewer_faults_than_are_known_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_layout, "faults", lambda: [check_layout.Fault("modules in circles", "a")])
    monkeypatch.setattr(check_layout, "long_files", list)
    for known, code in ((0, 1), (1, 0), (2, 1)):
        monkeypatch.setattr(check_layout, "KNOWN", {"modules in circles": known})
        assert check_layout.main([]) == code
