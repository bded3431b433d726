"""Everything that once found something, and the classical nasties, are played again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.__main__ import corpus
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_what_was_found_stays_mended(target: str, tmp_path: Path) -> None:
    for name, data in corpus(target).items():
        folder = tmp_path / name
        folder.mkdir()
        TARGETS[target](data, folder)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_chance_finds_nothing(target: str, tmp_path: Path) -> None:
    kept, draw = list(corpus(target).values()), random.Random(target)
    for number in range(30):
        folder = tmp_path / str(number)
        folder.mkdir()
        TARGETS[target](mutated(draw.choice(kept), kept, draw), folder)
