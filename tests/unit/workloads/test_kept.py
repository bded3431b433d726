"""Tokenised rows are taken from an earlier launch exactly if tokenising would give the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tunefleet.analysis.dataset.shapes import Recognized
from tunefleet.workloads.data.formats import Shape


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Encoder, TokenCache, PreTrainedTokenizerBase, Rows, Tokenized, datasets, module, pack, read_path
    pytest.importorskip("torch")

    import datasets
    from transformers import PreTrainedTokenizerBase

    from tunefleet.workloads.data import token_cache as module
    from tunefleet.workloads.data.readers import Rows, read_path
    from tunefleet.workloads.data.token_cache import TokenCache
    from tunefleet.workloads.data.tokenization import Encoder, Tokenized
    from tunefleet.workloads.training.streaming import pack


pytestmark = pytest.mark.torch
ROWS = [{"text": f"{number} birds sit on {number % 7} trees.", "other": number} for number in range(300)]
SHAPE = Shape(Recognized("text", {"text": "text"}), "rows")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each call has tokenised."""
    usual, counts = module.tokenize, list[int]()

    def count(rows: Rows, *args: Any) -> Tokenized:
        counts.append(len(rows))
        return usual(rows, *args)

    monkeypatch.setattr(module, "tokenize", count)
    return counts


@pytest.fixture
def go(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Callable[..., Tokenized]:
    """One launch."""

    def run(
        rows: Rows = ROWS, shape: Shape = SHAPE, *, length: int = 64, writes: bool = True, model: Any = tokenizer
    ) -> Tokenized:
        store = TokenCache(tmp_path / "tokens", model, Encoder(model), writes=writes)
        found = store.tokenize(rows, shape, Encoder(model), length)
        store.forget_others()
        return found

    return run


def same(one: Tokenized, other: Tokenized) -> bool:
    counts = [(t.rows, t.dropped, t.truncated, t.tokens, t.trained_tokens) for t in (one, other)]
    return counts[0] == counts[1] and one.dataset[:] == other.dataset[:]


def test_a_later_launch_takes_what_was_made(go: Callable[..., Tokenized], made: list[int], tmp_path: Path) -> None:
    first = go(length=8)
    assert first.truncated
    assert same(go(length=8), first)
    assert same(go(length=8, writes=False), first)
    assert made == [300]


def test_whatever_differs_is_made_anew(
    go: Callable[..., Tokenized], made: list[int], tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    go()
    templated = copy.deepcopy(tokenizer)
    templated.chat_template = "{{ messages }}"
    larger = copy.deepcopy(tokenizer)
    larger.add_tokens(["birds"])
    changed = [*ROWS[:-1], {"text": "a last one", "other": 1}]
    for number, options in enumerate(
        [
            {"rows": changed},
            {"rows": ROWS[:-1]},
            {"rows": ROWS[::-1]},
            {"shape": Shape(Recognized("prompt_response", {"prompt": "text", "response": "text"}), "rows")},
            {"length": 9},
            {"model": templated},
            {"model": larger},
        ],
        start=2,
    ):
        go(**options)
        assert len(made) == number, options
        assert len([*(tmp_path / "tokens").iterdir()]) == 2, "what was of use before is gone"


@pytest.mark.parametrize("damage", ["bit", "cut", "unnamed", "not json"])
def test_damage_is_noticed(
    damage: str, go: Callable[..., Tokenized], made: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = go()
    (table,), (about,) = (tmp_path / "tokens").glob("*.arrow"), (tmp_path / "tokens").glob("*.json")
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    {
        "bit": lambda: table.write_bytes(content),
        "cut": lambda: table.write_bytes(content[: len(content) // 2]),
        "unnamed": about.unlink,
        "not json": lambda: about.write_text("{"),
    }[damage]()
    assert same(go(), first)
    assert made == [300, 300]
    go()
    assert made == [300, 300], "it was written again"


def test_rows_in_arrow_are_known_by_their_content_too(
    go: Callable[..., Tokenized], made: list[int], tmp_path: Path
) -> None:
    for name, group in (("one", 300), ("two", 300), ("other", 300)):
        rows = ROWS if name != "other" else ROWS[1:]
        (tmp_path / name).mkdir()
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name / "rows.parquet", row_group_size=group)
    first = go(read_path(tmp_path / "one" / "rows.parquet", "train"))
    assert same(go(read_path(tmp_path / "two" / "rows.parquet", "train")), first), "it may have moved"
    picked = datasets.Dataset.from_list(ROWS).select(range(5, 50))
    go(picked)
    go(picked)
    go(picked.select(range(44)))
    assert made == [300, 45, 44]
    go(read_path(tmp_path / "other" / "rows.parquet", "train"))
    assert made[-1] == 299


def test_packed_rows_are_kept(
    go: Callable[..., Tokenized], tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = go()
    first = pack(tokens.dataset, 64, tokens.tokens, TokenCache(tmp_path / "tokens", tokenizer, Encoder(tokenizer)))
    with monkeypatch.context() as patched:
        patched.setattr("tunefleet.workloads.training.streaming.pack_dataset", None)
        again = pack(tokens.dataset, 64, tokens.tokens, TokenCache(tmp_path / "tokens", tokenizer, Encoder(tokenizer)))
    assert (again.sequences, again.filled) == (first.sequences, first.filled)
    assert again.dataset[:] == first.dataset[:] == pack(tokens.dataset, 64, tokens.tokens).dataset[:]
    other = pack(tokens.dataset, 70, tokens.tokens, TokenCache(tmp_path / "tokens", tokenizer, Encoder(tokenizer)))
    assert other.filled != first.filled


def test_little_free_disk_and_a_slow_tokenizer_keep_nothing(
    go: Callable[..., Tokenized],
    made: list[int],
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SHARE_OF_FREE_DISK", 1e-12)
    go()
    monkeypatch.setattr(module, "SHARE_OF_FREE_DISK", 1)
    go(writes=False)
    slow = TokenCache(tmp_path / "tokens", object(), Encoder(tokenizer))  # type: ignore[arg-type] - one without a backend
    slow.tokenize(ROWS, SHAPE, Encoder(tokenizer), 64)
    assert made == [300] * 3
    assert not [*tmp_path.glob("tokens/*")]


def test_all_of_it_can_go(go: Callable[..., Tokenized], tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    go()
    assert json.loads(next((tmp_path / "tokens").glob("*.json")).read_text())["counts"]["rows"] == 300
    store = TokenCache(tmp_path / "tokens", tokenizer, Encoder(tokenizer))
    assert store.discard()
    assert not store.discard()
    assert not (tmp_path / "tokens").exists()
