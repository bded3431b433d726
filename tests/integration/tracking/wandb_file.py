"""Reads a `.wandb` file back: records of W&B's own protocol buffers in a log of LevelDB's format.

W&B's reader of these files is part of its compiled core since 0.26; the format is the one that it documents and keeps.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HEADER = b":W&B"
_BLOCK = 32 * 1024
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


@dataclass
class Kept:
    """What a run file has of its run."""

    run: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exited: bool = False
    raw: bytes = b""


def read(path: Path) -> Kept:
    """Return what a run file has, every record of it."""
    from wandb.proto import wandb_internal_pb2 as records

    kept = Kept(raw=path.read_bytes())
    for data in _chunks(kept.raw):
        record = records.Record()
        record.ParseFromString(data)
        match record.WhichOneof("record_type"):
            case "run":
                kept.run = record.run
                kept.config |= _values(record.run.config.update)
            case "config":
                kept.config |= _values(record.config.update)
            case "history":
                kept.rows.append(_values(record.history.item))
            case "summary":
                kept.summary |= _values(record.summary.update)
            case "exit":
                kept.exited = True
            case _:
                continue
    return kept


def _values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _chunks(raw: bytes) -> Iterator[bytes]:
    assert raw.startswith(_HEADER)
    at, parts = 7, b""
    while at + 7 <= len(raw):
        left = _BLOCK - at % _BLOCK
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", raw, at)
        data = raw[at + 7 : at + 7 + length]
        at += 7 + length
        if kind == _FULL:
            yield data
        elif kind == _FIRST:
            parts = data
        elif kind in {_MIDDLE, _LAST}:
            parts += data
            if kind == _LAST:
                yield parts
        else:
            return
