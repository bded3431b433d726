"""Where the rows of a training come from: a hub dataset, a file, an address, an artifact, or the document itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tunefleet.spec.base import (
    ABuiltinDataset,
    Block,
    Headers,
    NotBool,
    PositiveInt,
    Revision,
    Text,
    Timeout,
    Url,
    is_url,
    many_wrong,
    only,
    wrong,
)

Faults = list[tuple[str, str, str | None]]
SourceKind = Literal["hub", "file", "worker_file", "url", "inline", "artifact"]


def _local(value: str) -> str:
    if "://" in value and not is_url(value):
        scheme = value.partition("://")[0]
        raise wrong(f"{scheme}:// is not fetched", "name a local file, or an address that starts with https://")
    return value


# A path on the machine that submits, where the file travels with the submit; or an http address, which the worker
# fetches.
LocalOrUrl = Annotated[Text, AfterValidator(_local)]
# The same, or `builtin:NAME`.
RowsPlace = Annotated[LocalOrUrl, ABuiltinDataset]


@dataclass(frozen=True, slots=True)
class DataSource:
    """A place that rows come from.

    Args:
        kind: `hub` (a hub id or a local folder), `file` (file or folder that travelled, or `builtin:NAME`),
            `worker_file` (lies on the worker), `url` (the worker fetches it), `inline`, `artifact`.
        pointer: Which key of the document named it, such as `data.path`; what a job's `inputs` are keyed by.
        value: Its value; empty for `inline`.
    """

    kind: SourceKind
    pointer: str
    value: str


class JsonlFile(Block):
    """`data.jsonl`: one JSON object a line; from the first place that is there.

    The order of the places is `download_url` or `url`, `path`, `worker_path`.
    """

    download_url: Url | None = None
    """Address; the worker fetches it."""
    url: Url | None = None
    """The same as `download_url`."""
    path: RowsPlace | None = None
    """File on the machine that submits; it travels with the submit. Or an address."""
    worker_path: Text | None = None
    """File on the worker's own disk; it does not travel."""
    headers: Headers | None = None
    """Sent with the request for the address."""
    download_headers: Headers | None = None
    """The same as `headers`."""
    download_timeout_s: Timeout | None = Field(default=None, alias="download_timeoutSec")
    """Seconds to wait for an answer; 60 by default."""
    timeout_sec: Timeout | None = Field(default=None, alias="timeoutSec")
    """The same as `download_timeoutSec`."""
    timeout: Timeout | None = None
    """The same as `download_timeoutSec`."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        faults: Faults = []
        if not self.sources:
            faults.append(("", "names no file", "give one of path, url and worker_path"))
        if self.headers is not None and self.download_headers is not None:
            faults.append(("download_headers", "means the same as headers", "leave one of them out"))
        given = [key for key, value in self._timeouts() if value is not None]
        faults += [(key, f"means the same as {given[0]}", "leave one of them out") for key in given[1:]]
        if faults:
            raise many_wrong(faults)
        return self

    def _timeouts(self) -> tuple[tuple[str, float | None], ...]:
        return (
            ("download_timeoutSec", self.download_timeout_s),
            ("timeoutSec", self.timeout_sec),
            ("timeout", self.timeout),
        )

    @property
    def sources(self) -> tuple[DataSource, ...]:
        """The places, in the order in which they are tried."""
        named = (
            ("url", "download_url", self.download_url),
            ("url", "url", self.url),
            ("file", "path", self.path),
            ("worker_file", "worker_path", self.worker_path),
        )
        return tuple(
            DataSource("url" if kind == "file" and is_url(value) else kind, f"data.jsonl.{key}", value)  # type: ignore[arg-type]
            for kind, key, value in named
            if value is not None
        )

    @property
    def request_headers(self) -> dict[str, str]:
        """What is sent with the request."""
        return self.headers or self.download_headers or {}

    @property
    def timeout_s(self) -> float:
        """Seconds to wait for an answer."""
        return next((value for _, value in self._timeouts() if value is not None), 60.0)


class EvalSpec(Block):
    """`data.eval`: rows that are held out. Loss is measured on them before and after the training."""

    split: Text | None = None
    """Another split of the same dataset."""
    path: RowsPlace | None = None
    """Another file or folder; it travels with the submit. Or an address."""
    fraction: Annotated[float, Field(gt=0, lt=1), NotBool] | None = None
    """Part of the training rows, drawn by `training.seed` and taken out of them."""
    max_samples: PositiveInt | None = None
    """Use at most this many rows."""

    @model_validator(mode="after")
    def _one_place(self) -> EvalSpec:
        if sum(value is not None for value in (self.split, self.path, self.fraction)) != 1:
            raise wrong("needs exactly one of split, path and fraction")
        return self


class RowsSpec(Block):
    """The keys of `spec.data` that say where the rows of a training come from; exactly one of them names it."""

    inline: ClassVar[str] = "prompts"
    """The key with rows that stand in the document."""

    dataset_name: Annotated[Text, ABuiltinDataset] | None = None
    """Hub id, or a local folder."""
    config_name: Text | None = None
    """Configuration of a hub dataset."""
    split: Text = "train"
    """Split of a dataset, with the hub's slices: `train[:5%]`."""
    revision: Revision | None = None
    """Branch, tag or commit of a hub dataset."""
    trust_remote_code: Annotated[
        bool, only(False, "datasets that run code of their own cannot be loaded", "leave it out, or write false")
    ] = False
    """Always false: the `datasets` library no longer runs a dataset's own code."""
    path: RowsPlace | None = None
    """File (JSONL, JSON, CSV, Parquet), saved dataset folder or archive that travels with the submit, an address, or
    `builtin:gsm8k`."""
    artifact: Text | None = None
    """Name of an artifact that was pushed with `tunefleet data push`."""
    jsonl: JsonlFile | None = None
    """A JSONL file with its own field names."""
    jsonl_path: RowsPlace | None = None
    """The same as `jsonl.path`."""
    max_samples: PositiveInt | None = None
    """Use at most this many rows."""
    eval: EvalSpec | None = None
    """Rows that are held out."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        faults = self._faults()
        if faults:
            raise many_wrong(faults)
        return self

    def _faults(self) -> Faults:
        keys = self.source_keys()
        given = [name for name in keys if getattr(self, name) is not None]
        hint = f"give exactly one of {', '.join(keys)}"
        faults: Faults = []
        if not given:
            faults.append(("", "names no data", hint))
        faults.extend((name, f"cannot be given together with {given[0]}", hint) for name in given[1:])
        if given and "dataset_name" not in given:
            faults.extend(
                (name, "belongs to dataset_name", "leave it out, or name a hub dataset with dataset_name")
                for name in ("config_name", "revision")
                if getattr(self, name) is not None
            )
        if self.inline in given and self.eval is not None and self.eval.split is not None:
            faults.append(("eval.split", f"inline {self.inline} have no splits", "use eval.fraction or eval.path"))
        return faults

    @classmethod
    def source_keys(cls) -> tuple[str, ...]:
        """Return the keys of which exactly one is given."""
        return ("dataset_name", "path", "artifact", "jsonl", "jsonl_path", cls.inline)

    @property
    def sources(self) -> tuple[DataSource, ...]:
        """The places that rows may come from, in the order in which they are tried; all but a JSONL file have one."""
        if getattr(self, self.inline) is not None:
            return (DataSource("inline", f"data.{self.inline}", ""),)
        if self.jsonl is not None:
            return self.jsonl.sources
        for name, kind in _SINGLE_SOURCES:
            value: str | None = getattr(self, name)
            if value is not None:
                fetched = kind == "file" and is_url(value)
                return (DataSource("url" if fetched else kind, f"data.{name}", value),)
        raise AssertionError("a validated block has a source")

    @property
    def source(self) -> DataSource:
        """The first of them."""
        return self.sources[0]


_SINGLE_SOURCES: tuple[tuple[str, SourceKind], ...] = (
    ("dataset_name", "hub"),
    ("path", "file"),
    ("jsonl_path", "file"),
    ("artifact", "artifact"),
)
