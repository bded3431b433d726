"""What going on costs where 200,000 rows were trained, beside where 2,000 were.

    python bench/resume_seek.py [--rows 210000] [--repeat 3]

For each kind of data the same file is opened anew and the first batch after the place is asked for: the time from the
open dataset to that batch, and the rows that were read for it. A map-style or packed dataset is tokenised as a whole in
both cases (that cost is the same, and printed once); what is compared is going to the place. CSV, which cannot seek, is
the example of what it costs otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from accelerate import skip_first_batches
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader, RandomSampler

from tunefleet.programs import assets, base_model
from tunefleet.programs.data.shapes import Shape
from tunefleet.programs.data.streams import open_file
from tunefleet.programs.data.tokens import Encoder, tokenize
from tunefleet.programs.train.packing import pack
from tunefleet.programs.train.streaming import Place, SampleStream, StreamShare, loader
from tunefleet.spec import TextShape

BATCH = 4
EARLY, LATE = 2_000, 200_000
SHAPE = Shape(TextShape("text"), "rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=LATE + 10_000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    datasets.disable_progress_bars()
    source = base_model.Source("shipped", str(assets.locate("builtin:gsm8k-llama-2m", "model")))
    encoder = Encoder(base_model.load_tokenizer(source))
    with tempfile.TemporaryDirectory() as name:
        files = write(Path(name), options.rows)
        print(f"{'data':28} {'after ' + f'{EARLY:,}':>14} {'after ' + f'{LATE:,}':>14} {'ratio':>7}   rows read")
        for suffix, packed in itertools.product((".jsonl", ".parquet", ".csv"), (False, True)):
            label = f"stream {suffix[1:]}{', packed' if packed else ''}"
            report(label, lambda rows, s=suffix, p=packed: streamed(files[s], encoder, rows, packed=p), options.repeat)
        for packed in (False, True):
            go = mapped(files[".jsonl"], encoder, packed=packed)
            report("map-style" + (", packed" if packed else ""), go, options.repeat)


def write(folder: Path, rows: int) -> dict[str, Path]:
    texts = [
        f"Row {number} tells of {number * 7919 % 1000} things, and of {number % 13} more." for number in range(rows)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    pq.write_table(pa.table({"text": texts}), folder / "rows.parquet", row_group_size=20_000)
    (folder / "rows.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in texts))
    return {path.suffix: path for path in folder.iterdir()}


def report(label: str, go: Callable[[int], tuple[float, int]], repeat: int) -> None:
    early, late = ([go(rows) for _ in range(repeat)] for rows in (EARLY, LATE))
    first, second = (statistics.median(seconds for seconds, _ in runs) for runs in (early, late))
    print(
        f"{label:28} {first * 1e3:11.1f} ms {second * 1e3:11.1f} ms {second / first:7.2f}"
        f"   {early[0][1]:,} and {late[0][1]:,}"
    )


def streamed(file: Path, encoder: Encoder, rows: int, *, packed: bool) -> tuple[float, int]:
    """The place is made by hand: windows before it are passed over once, untimed."""
    window, reader, place = 10_000, open_file(file), Place()
    while place.rows + window <= rows:
        block = reader.read(place.mark, window)
        place = Place(rows=place.rows + block.size, mark=block.after)
    # A little into the window, as in a real run.
    place = Place(rows=place.rows, mark=place.mark, group=1, taken=2)
    started, reader = time.perf_counter(), open_file(file)
    stream = SampleStream(reader, SHAPE, encoder, seed=1, window=window, max_length=256, packed=packed)
    share = StreamShare(stream, place, batch=BATCH)
    next(iter(loader(share, list_of, batch=BATCH, workers=0, pin=False)))
    return time.perf_counter() - started, reader.rows_read


def list_of(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"samples": samples}


def mapped(file: Path, encoder: Encoder, *, packed: bool) -> Callable[[int], tuple[float, int]]:
    """As the Trainer does it: a seeded sampler whose first batches are left out, without reading their rows."""
    started = time.perf_counter()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    tokens = tokenize(rows, SHAPE, encoder, 256)
    dataset = pack(tokens.dataset, 256, tokens.tokens).dataset if packed else tokens.dataset
    prepared_s = time.perf_counter() - started
    print(f"  (read and tokenised as a whole in {prepared_s:.1f} s, at any resume)")
    share = len(dataset) / len(rows)

    def go(consumed: int) -> tuple[float, int]:
        whole = DataLoader(dataset, batch_size=BATCH, sampler=RandomSampler(dataset), collate_fn=list)
        prepared = prepare_data_loader(whole, put_on_device=False, use_seedable_sampler=True, data_seed=1)
        started = time.perf_counter()
        next(iter(skip_first_batches(prepared, int(consumed * share) // BATCH)))
        return prepared_s + time.perf_counter() - started, BATCH

    return go


if __name__ == "__main__":
    main()
