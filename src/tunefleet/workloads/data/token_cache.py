"""Tokenized rows that a relaunch of the same job reuses.

One Arrow table per file, named after everything that its content depends on: the rows, how they are read and tokenized,
and the library versions. It is read through a memory map after its digest is checked; a missing or damaged table is
created again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import datasets
import orjson
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.workloads.data.formats import Shape
from tunefleet.workloads.data.readers import Rows, table
from tunefleet.workloads.data.tokenization import Encoder, Tokenized, tokenize

logger = logging.getLogger(__name__)

FORMAT: Final = 2
SHARE_OF_FREE_DISK: Final = 0.1
_LIBRARIES: Final = ("transformers", "tokenizers", "trl", "datasets", "pyarrow")
_BATCH: Final = 5000
_COUNTS: Final = ("rows", "dropped", "truncated", "tokens", "trained_tokens")


class TokenCache:
    """The token tables of one job."""

    def __init__(
        self, folder: Path, tokenizer: PreTrainedTokenizerBase, encoder: Encoder, *, writes: bool = True
    ) -> None:
        self._folder = folder
        self._facts = _facts(tokenizer, encoder)
        self._writes = writes
        self._used: set[str] = set()

    def tokenize(
        self, rows: Rows, shape: Shape, encoder: Encoder, max_length: int, processes: int | None = None
    ) -> Tokenized:
        """Return the result of `tokenization.tokenize`, from an earlier launch if available."""
        if self._facts is None:
            return tokenize(rows, shape, encoder, max_length, processes)
        how = repr(shape.recognized), shape.separator, str(shape.as_chat)
        key = _key("rows", self._facts, *how, max_length, _content(rows))
        found = self._load(key)
        if found is not None:
            dataset, about = found
            return Tokenized(dataset, **{name: int(about[name]) for name in _COUNTS}, notes=tuple(about["notes"]))
        made = tokenize(rows, shape, encoder, max_length, processes)
        self._keep(key, made.dataset, {**{name: getattr(made, name) for name in _COUNTS}, "notes": made.notes})
        return made

    def derived(self, dataset: datasets.Dataset, *how: object) -> tuple[str, datasets.Dataset | None]:
        """Return the key of a dataset derived from another, and the dataset if it is cached."""
        key = _key("derived", self._facts, *how, _content(dataset))
        found = self._load(key) if self._facts is not None else None
        return key, found[0] if found else None

    def keep_derived(self, key: str, dataset: datasets.Dataset) -> None:
        """Cache a derived dataset."""
        if self._facts is not None:
            self._keep(key, dataset, {})

    def forget_others(self) -> None:
        """Delete tables that this launch does not use: their rows, model or limits have changed."""
        if not self._writes or not self._folder.is_dir():
            return
        for file in self._folder.iterdir():
            if file.name.partition(".")[0] not in self._used:
                file.unlink(missing_ok=True)

    def discard(self) -> bool:
        """Delete all tables; return whether there were any."""
        exists = self._writes and self._folder.is_dir()
        if exists:
            shutil.rmtree(self._folder, ignore_errors=True)
        return exists

    def _load(self, key: str) -> tuple[datasets.Dataset, Mapping[str, Any]] | None:
        self._used.add(key)
        about, file = read_json(self._folder / f"{key}.json"), self._folder / f"{key}.arrow"
        if about is None:
            return None
        try:
            with file.open("rb") as stream:
                # The file may be torn: it is not synced, since it can be created again.
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if digest != about.get("digest"):
                raise ValueError("its digest differs")
            tokens = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
            dataset = datasets.Dataset(tokens, fingerprint=key)
        except (OSError, ValueError, pa.ArrowException) as error:
            logger.warning("Cached tokens from an earlier launch are not used: %s", error)
            return None
        logger.info("Using %s tokenized rows from an earlier launch", f"{len(dataset):,}")
        return dataset, about.get("counts") or {}

    def _keep(self, key: str, dataset: datasets.Dataset, counts: Mapping[str, Any]) -> None:
        if not self._writes:
            return
        target, draft = self._folder / f"{key}.arrow", self._folder / f"{key}.partial"
        try:
            self._folder.mkdir(exist_ok=True)
            tokens, free = dataset.with_format("arrow")[:], shutil.disk_usage(self._folder).free
            # The disk is needed for checkpoints.
            if tokens.nbytes > free * SHARE_OF_FREE_DISK:
                logger.info("Tokenized rows are not cached: %s of %s free bytes", f"{tokens.nbytes:,}", f"{free:,}")
                return
            with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, tokens.schema) as writer:
                writer.write_table(tokens)
            with draft.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            draft.replace(target)
            write_json(self._folder / f"{key}.json", {"digest": digest, "counts": dict(counts)})
        except OSError as error:
            logger.warning("Tokenized rows cannot be cached: %s", error)
            draft.unlink(missing_ok=True)


def _facts(tokenizer: PreTrainedTokenizerBase, encoder: Encoder) -> str | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    # A slow tokenizer cannot be serialized, so its tokens cannot be identified.
    if backend is None:
        return None
    versions = {name: metadata.version(name) for name in _LIBRARIES}
    special = {name: str(value) for name, value in tokenizer.special_tokens_map.items()}
    facts = [
        FORMAT,
        *encoder.options,
        versions,
        type(tokenizer).__name__,
        special,
        tokenizer.chat_template,
        backend.to_str(),
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _key(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _content(rows: Rows | datasets.Dataset) -> str:
    """Return a digest of the rows themselves, independent of their location and selection."""
    digest = hashlib.sha256()
    stored = table(rows)
    for piece in _json_pieces(rows) if stored is None else _arrow_pieces(stored):
        digest.update(piece)
    return digest.hexdigest()


def _arrow_pieces(rows: datasets.Dataset) -> Iterable[Any]:
    for part in rows.with_format("arrow").iter(batch_size=_BATCH):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_table(part.combine_chunks())
        yield sink.getvalue()


def _json_pieces(rows: Rows) -> Iterable[bytes]:
    for start in range(0, len(rows), _BATCH):
        # Values that JSON does not support are represented by their text.
        yield orjson.dumps(list(rows[start : start + _BATCH]), default=repr, option=orjson.OPT_NON_STR_KEYS)
