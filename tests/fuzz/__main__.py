"""Look for bytes that a target does not stand: `python -m tests.fuzz --seconds 60 [--target NAME] [--seed N]`.

What is found is made smaller, and kept in the corpus, where `make test` plays it again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Final

os.environ.setdefault("TUNEFLEET_HOME", tempfile.mkdtemp(prefix="fuzz-"))

from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS

CORPUS: Final = Path(__file__).with_name("corpus")
SLOW_S: Final = 20.0


def corpus(target: str) -> dict[str, bytes]:
    """Return what is kept for a target, by name."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / target).iterdir())}


def failure(target: str, data: bytes) -> str | None:
    """Return what a target does not stand about bytes: the error and where it came from; null if nothing."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        try:
            TARGETS[target](data, Path(folder))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
            ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "tunefleet" in frame.filename]
            where = ours[-1] if ours else traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {str(error)[:200]}"
    took_s = time.monotonic() - began
    return f"it took {took_s:.0f} s" if took_s > SLOW_S else None


def smaller(target: str, data: bytes, kind: str) -> bytes:
    """Return bytes, as few as are quickly found, with the same failure."""
    size = max(1, len(data) // 2)
    ends = time.monotonic() + 20
    while size and time.monotonic() < ends:
        at = 0
        while at < len(data) and time.monotonic() < ends:
            shorter = data[:at] + data[at + size :]
            found = failure(target, shorter)
            if found is not None and found.partition(":")[0] == kind.partition(":")[0]:
                data = shorter
            else:
                at += size
        size //= 2
    return data


def main() -> int:
    """Fuzz until the time is over; 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long, in all")
    parser.add_argument("--target", choices=sorted(TARGETS), help="one alone")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    draw = random.Random(asked.seed)
    names = [asked.target] if asked.target else list(TARGETS)
    found: dict[str, str] = {}
    for name in names:
        kept = list(corpus(name).values())
        ends, done = time.monotonic() + asked.seconds / len(names), 0
        while time.monotonic() < ends:
            data, done = mutated(draw.choice(kept), kept, draw), done + 1
            told = failure(name, data)
            if told is None or (key := f"{name}: {told.partition(':')[0]}") in found:
                continue
            found[key] = told
            data = smaller(name, data, told)
            file = CORPUS / name / f"found-{hashlib.sha256(data).hexdigest()[:8]}"
            file.write_bytes(data)
            print(f"{key}\n    {told}\n    {file.relative_to(CORPUS.parent)}", flush=True)
        print(f"{name}: {done} inputs", flush=True)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
