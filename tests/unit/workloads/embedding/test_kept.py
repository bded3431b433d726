"""What a run costs is that of all its texts, in however many launches they were made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tunefleet.spec.tasks.retrieval import VectorSpec


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Encoder, VectorCache, Vectors, encoded
    from tunefleet.workloads.embedding.encoder import Encoder, Vectors
    from tunefleet.workloads.embedding.vector_cache import VectorCache, encoded


class Characters:
    """A model whose tokens are characters, of which it takes six."""

    library = "transformers"
    dimension = 1
    longest = 6

    def vectors(self, texts: Sequence[str], batch_size: int) -> Vectors:
        return np.array([[len(text)] for text in texts], dtype=np.float32)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return [(at, at + 1) for at in range(len(text))]


def test_a_launch_after_a_kill_counts_what_the_one_before_has_made(tmp_path: Path) -> None:
    texts = ["much too long", "short", "another long one", "end"]

    def launch(folder: str, texts: Sequence[str]) -> tuple[list[float], int, int]:
        encoder = Encoder(Characters(), VectorSpec(normalize=False))
        kept = VectorCache(tmp_path / folder, 1, "run")
        vectors = encoded(kept, texts, 2, encoder, lambda _: None)
        return vectors[:, 0].tolist(), encoder.tokens, encoder.cut

    assert launch("killed", texts[:2]) == ([6, 5], 11, 1)
    assert launch("killed", texts) == launch("whole", texts) == ([6, 5, 6, 3], 20, 2)
