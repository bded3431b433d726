"""Going to a place in a stream: what is read, and that what follows is what would have followed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tunefleet.analysis.dataset.shapes import Recognized
from tunefleet.errors import DataError
from tunefleet.workloads import assets
from tunefleet.workloads.data.formats import Shape


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global CsvReader, Encoder, HubReader, JsonlReader, POSITION_KEY, ParquetReader, StreamPosition, Reader
    global SampleStream, StreamShare
    global base_model, datasets, loader, open_file
    pytest.importorskip("torch")

    import datasets

    from tunefleet.workloads.common import base_model
    from tunefleet.workloads.data.streams import CsvReader, HubReader, JsonlReader, ParquetReader, Reader, open_file
    from tunefleet.workloads.data.tokenization import Encoder
    from tunefleet.workloads.training.streaming import (
        POSITION_KEY,
        SampleStream,
        StreamPosition,
        StreamShare,
        loader,
    )


pytestmark = pytest.mark.torch
ROWS = 5000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same rows in each format."""
    folder = tmp_path_factory.mktemp("rows")
    texts = [f"row {number}" for number in range(ROWS)]
    jsonl = folder / "rows.jsonl"
    jsonl.write_text("".join(json.dumps({"text": text}) + "\n" + "\n" * (n % 3 == 0) for n, text in enumerate(texts)))
    pq.write_table(pa.table({"text": texts}), folder / "rows.parquet", row_group_size=300)
    (folder / "rows.csv").write_text("text\n" + "\n".join(texts) + "\n")
    return {path.suffix: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    source = base_model.Source("shipped", str(assets.locate("builtin:gsm8k-llama-2m", "model")))
    return Encoder(base_model.load_tokenizer(source))


def stream_of(reader: Reader, encoder: Encoder, **options: Any) -> SampleStream:
    options = {"seed": 1, "window": 100, "max_length": 32, **options}
    return SampleStream(reader, Shape(Recognized("text", {"text": "text"}), "rows"), encoder, **options)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv"])
def test_blocks_hold_all_rows_in_order_whatever_their_size(files: dict[str, Path], suffix: str) -> None:
    reader, mark, texts = open_file(files[suffix]), None, []
    for count in itertools.cycle([1, 299, 301, 7]):
        block = reader.read(mark, count)
        texts += [block.row(index)["text"] for index in range(block.size)]
        mark = json.loads(json.dumps(block.after))
        if mark is None:
            break
    assert texts == [f"row {number}" for number in range(ROWS)]


@pytest.mark.parametrize(("suffix", "most"), [(".jsonl", 100), (".parquet", 600)])
@pytest.mark.parametrize("packed", [False, True])
def test_going_on_late_reads_no_more_than_going_on_early(
    files: dict[str, Path], encoder: Encoder, suffix: str, most: int, packed: bool
) -> None:
    def read_after(taken: int) -> int:
        straight = stream_of(open_file(files[suffix]), encoder, packed=packed).samples(StreamPosition())
        place = next(itertools.islice(straight, taken - 1, None))[1]
        reader = open_file(files[suffix])
        follows = stream_of(reader, encoder, packed=packed).samples(
            StreamPosition(**json.loads(json.dumps(place.as_json())))
        )
        first = [sample for sample, _ in itertools.islice(follows, 40)]
        assert first == [sample for sample, _ in itertools.islice(straight, 40)]
        return reader.rows_read

    samples = 1 if not packed else 7  # about as many rows in a packed sample
    early, late = read_after(60 // samples), read_after(4200 // samples)
    assert late <= max(early, 2 * most)


def test_csv_reads_everything_before_its_place_again_and_says_so(files: dict[str, Path]) -> None:
    reader = CsvReader(files[".csv"])
    assert not reader.seeks
    assert reader.read(4000, 1).row(0) == {"text": "row 4000"}
    assert reader.rows_read == 4001


def test_a_streamed_dataset_of_the_library_goes_to_its_shard_and_row(files: dict[str, Path], encoder: Encoder) -> None:
    def reader() -> HubReader:
        return HubReader(
            datasets.load_dataset("parquet", data_files=str(files[".parquet"]), split="train", streaming=True)
        )

    straight = stream_of(reader(), encoder, window=64).samples(StreamPosition())
    place = next(itertools.islice(straight, 1000, None))[1]
    follows = stream_of(reader(), encoder, window=64).samples(StreamPosition(**json.loads(json.dumps(place.as_json()))))
    expected = [sample for sample, _ in itertools.islice(straight, 100)]
    assert [sample for sample, _ in itertools.islice(follows, 100)] == expected


def test_every_pass_has_every_row_in_an_order_of_its_own(tmp_path: Path, encoder: Encoder) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(23)))
    samples = stream_of(JsonlReader(file), encoder, window=8, limit=20).samples(StreamPosition())
    passes = [[str(sample["input_ids"]) for sample, _ in itertools.islice(samples, 20)] for _ in range(3)]
    assert set(passes[0]) == set(passes[1]) == set(passes[2])
    assert len(set(passes[0])) == 20
    assert passes[0] != passes[1] != passes[2]


def ranks_share(files: dict[str, Path], encoder: Encoder, workers: int) -> None:
    """Check that two ranks together take what one takes, also after a resume."""

    def batches(start: StreamPosition, world: int, count: int) -> tuple[list[list[int]], StreamPosition]:
        """What all ranks take, in the order of the stream, and the place that rank 0 would save."""
        taken, place = [], start
        shares = [
            iter(loader(share, list_of_ids, batch=3, workers=workers, pin=False))
            for rank in range(world)
            for share in [
                StreamShare(
                    stream_of(ParquetReader(files[".parquet"]), encoder), start, batch=3, rank=rank, world=world
                )
            ]
        ]
        for _ in range(count):
            for rank, share in enumerate(shares):
                batch = next(share)
                place = batch[POSITION_KEY] if rank == 0 else place
                taken += batch["ids"]
        return taken, place

    alone, _ = batches(StreamPosition(), 1, 12)
    first, place = batches(StreamPosition(), 2, 3)
    then, _ = batches(place, 2, 3)
    assert first + then == alone


def test_ranks_share_the_samples_and_go_on_together(files: dict[str, Path], encoder: Encoder) -> None:
    ranks_share(files, encoder, workers=0)


def list_of_ids(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"ids": [sample["input_ids"] for sample in samples]}


def test_a_stream_of_which_nothing_can_be_learnt_ends_with_a_sentence(tmp_path: Path, encoder: Encoder) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "x"}\n' * 5)
    with pytest.raises(DataError, match="No row of rows has trained tokens within 1 tokens"):
        next(stream_of(JsonlReader(file), encoder, max_length=1).samples(StreamPosition()))
    file.write_text('{"text": "x"}\nnonsense\n')
    with pytest.raises(DataError, match=r"Line 2 of rows.jsonl is not valid JSON"):
        next(stream_of(JsonlReader(file), encoder).samples(StreamPosition()))


@pytest.mark.parametrize("name", ["rows.json", "rows.txt"])
def test_what_cannot_be_streamed_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("[]")
    with pytest.raises(DataError, match="cannot be read as a stream"):
        open_file(tmp_path / name)
