"""Finished items: one line per item, durable batch by batch, so that a relaunch continues."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tunefleet.fsutil import write_file

Item = dict[str, Any]


class ItemLog:
    """The finished items of one evaluation, by their index."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._items: dict[int, Item] = {}
        good = 0
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
            if not line.endswith(b"\n"):
                break  # the process was killed while writing
            item = json.loads(line)
            self._items[int(item["index"])] = item
            good += len(line)
        self._file = path.open("ab")
        # Before appending, or the next item would continue the torn line.
        self._file.truncate(good)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, index: object) -> bool:
        return index in self._items

    def __iter__(self) -> Iterator[Item]:
        """Iterate over the items in the order of the rows."""
        return (self._items[index] for index in sorted(self._items))

    def add(self, items: Iterable[Item]) -> None:
        """Store items durably."""
        for item in items:
            self._items[int(item["index"])] = item
            self._file.write(json.dumps(item, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def deliver(self, target: Path) -> None:
        """Write the items in the order of the rows, atomically."""
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, b"".join(json.dumps(item, ensure_ascii=False).encode() + b"\n" for item in self))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
