"""What going on costs where 200,000 rows were trained, beside where 2,000 were.

    python bench/resume_seek.py [--rows 210000] [--repeat 3]

For each kind of data the same file is opened anew and the first batch after the place is asked for: the time from the
closed file to that batch, and the rows that were read for it. A map-style or packed dataset was tokenised by the first
launch, which takes as long as is printed; a resume reads the rows and takes what was kept. CSV, which cannot seek, is
the example of what it costs otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from _report import Figure, Report
from accelerate import skip_first_batches
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader, RandomSampler

from tunefleet.analysis.dataset.shapes import Recognized
from tunefleet.workloads import assets
from tunefleet.workloads.common import base_model
from tunefleet.workloads.data.formats import Shape
from tunefleet.workloads.data.readers import read_path
from tunefleet.workloads.data.streams import open_file
from tunefleet.workloads.data.token_cache import TokenCache
from tunefleet.workloads.data.tokenization import Encoder
from tunefleet.workloads.training.streaming import SampleStream, StreamPosition, StreamShare, loader, pack

BATCH = 4
EARLY, LATE = 2_000, 200_000
SHAPE = Shape(Recognized("text", {"text": "text"}), "rows")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=LATE + 10_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="each once, and a tenth of the rows")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    options = parser.parse_args()
    late = LATE // 10 if options.quick else LATE
    if options.quick:
        options.repeat, options.rows = 1, late + 10_000
    told = Report("resume_seek", quick=options.quick)
    datasets.disable_progress_bars()
    source = base_model.Source("shipped", str(assets.locate("builtin:gsm8k-llama-2m", "model")))
    tokenizer = base_model.load_tokenizer(source)
    encoder = Encoder(tokenizer)
    with tempfile.TemporaryDirectory() as name:
        files = write(Path(name), options.rows)
        print(f"{'data':28} {'after ' + f'{EARLY:,}':>14} {'after ' + f'{late:,}':>14} {'ratio':>7}   rows read")
        for suffix, packed in itertools.product((".jsonl", ".parquet", ".csv"), (False, True)):
            label = f"stream {suffix[1:]}{', packed' if packed else ''}"
            go: Callable[[int], tuple[float, int]] = partial(streamed, files[suffix], encoder, packed=packed)
            report(told, label, go, late, options.repeat)
        for suffix, packed in itertools.product((".jsonl", ".parquet"), (False, True)):
            kept = TokenCache(Path(name) / "tokens", tokenizer, encoder)
            go = mapped(files[suffix], encoder, kept, packed=packed)
            report(told, f"map-style {suffix[1:]}{', packed' if packed else ''}", go, late, options.repeat)
            kept.discard()
    told.write(options.json)
    return 0


def write(folder: Path, rows: int) -> dict[str, Path]:
    texts = [
        f"Row {number} tells of {number * 7919 % 1000} things, and of {number % 13} more." for number in range(rows)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    pq.write_table(pa.table({"text": texts}), folder / "rows.parquet", row_group_size=20_000)
    (folder / "rows.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in texts))
    return {path.suffix: path for path in folder.iterdir()}


def report(told: Report, label: str, go: Callable[[int], tuple[float, int]], late_rows: int, repeat: int) -> None:
    early, late = ([go(rows) for _ in range(repeat)] for rows in (EARLY, late_rows))
    first, second = (statistics.median(seconds for seconds, _ in runs) for runs in (early, late))
    print(
        f"{label:28} {first * 1e3:11.1f} ms {second * 1e3:11.1f} ms {second / first:7.2f}"
        f"   {early[0][1]:,} and {late[0][1]:,}",
        flush=True,
    )
    told.row(
        f"first batch after {late_rows:,} rows, {label}", Figure.of([1e3 * seconds for seconds, _ in late], "ms"),
        samples=repeat, note=f"after {EARLY:,} rows {first * 1e3:.1f} ms; {late[0][1]:,} rows were read",
    )  # fmt: skip


def streamed(file: Path, encoder: Encoder, rows: int, *, packed: bool) -> tuple[float, int]:
    """The place is made by hand: windows before it are passed over once, untimed."""
    window, reader, place = 10_000, open_file(file), StreamPosition()
    while place.rows + window <= rows:
        block = reader.read(place.mark, window)
        place = StreamPosition(rows=place.rows + block.size, mark=block.after)
    # A little into the window, as in a real run.
    place = StreamPosition(rows=place.rows, mark=place.mark, group=1, taken=2)
    started, reader = time.perf_counter(), open_file(file)
    stream = SampleStream(reader, SHAPE, encoder, seed=1, window=window, max_length=256, packed=packed)
    share = StreamShare(stream, place, batch=BATCH)
    next(iter(loader(share, list_of, batch=BATCH, workers=0, pin=False)))
    return time.perf_counter() - started, reader.rows_read


def list_of(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"samples": samples}


def mapped(file: Path, encoder: Encoder, kept: TokenCache, *, packed: bool) -> Callable[[int], tuple[float, int]]:
    """As the recipe and the Trainer do it: kept tables, and a seeded sampler whose first batches are left out."""

    def open_dataset() -> tuple[datasets.Dataset, int]:
        rows = read_path(file, "train")
        tokens = kept.tokenize(rows, SHAPE, encoder, 256)
        return pack(tokens.dataset, 256, tokens.tokens, kept).dataset if packed else tokens.dataset, len(rows)

    started = time.perf_counter()
    open_dataset()
    print(f"  (read and tokenised as a whole in {time.perf_counter() - started:.1f} s by the first launch)")

    def go(consumed: int) -> tuple[float, int]:
        started = time.perf_counter()
        dataset, rows = open_dataset()
        whole = DataLoader(dataset, batch_size=BATCH, sampler=RandomSampler(dataset), collate_fn=list)
        prepared = prepare_data_loader(whole, put_on_device=False, use_seedable_sampler=True, data_seed=1)
        next(iter(skip_first_batches(prepared, int(consumed / rows * len(dataset)) // BATCH)))
        return time.perf_counter() - started, BATCH

    return go


if __name__ == "__main__":
    sys.exit(main())
