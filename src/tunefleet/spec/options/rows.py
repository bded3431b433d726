"""Sources of training rows: a Hub dataset, a file, a URL, an artifact, or inline rows."""

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
_SINGLE_SOURCES: tuple[tuple[str, SourceKind], ...] = (
    ("dataset_name", "hub"),
    ("path", "file"),
    ("jsonl_path", "file"),
    ("artifact", "artifact"),
)


def _local(value: str) -> str:
    if "://" in value and not is_url(value):
        scheme = value.partition("://")[0]
        raise wrong(f"{scheme}:// is not supported", "use a local file, or a URL that starts with https://")
    return value


# A path on the submitting machine, which is uploaded with the workflow; or an http URL, which the worker fetches.
LocalOrUrl = Annotated[Text, AfterValidator(_local)]
# The same, or `builtin:NAME`.
RowsPlace = Annotated[LocalOrUrl, ABuiltinDataset]


@dataclass(frozen=True, slots=True)
class DataSource:
    """A source of rows.

    Args:
        kind: `hub` (a Hub id or a local folder), `file` (uploaded file or folder, or `builtin:NAME`),
            `worker_file` (on the worker's disk), `url` (the worker fetches it), `inline`, `artifact`.
        pointer: The key that names it, such as `data.path`; also its key in a job's `inputs`.
        value: The value of that key; empty for `inline`.
    """

    kind: SourceKind
    pointer: str
    value: str


class JsonlFile(Block):
    """`data.jsonl`: a file with one JSON object per line. The first source that exists is used.

    Sources are tried in the order `download_url` or `url`, `path`, `worker_path`.
    """

    download_url: Url | None = None
    """URL that the worker downloads."""
    url: Url | None = None
    """Alias of `download_url`."""
    path: RowsPlace | None = None
    """File on the submitting machine, which is uploaded with the workflow, or a URL."""
    worker_path: Text | None = None
    """File on the worker's disk; not uploaded."""
    headers: Headers | None = None
    """HTTP headers of the download."""
    download_headers: Headers | None = None
    """Alias of `headers`."""
    download_timeout_s: Timeout | None = Field(default=None, alias="download_timeoutSec")
    """Timeout of the download request, in seconds; default: 60."""
    timeout_sec: Timeout | None = Field(default=None, alias="timeoutSec")
    """Alias of `download_timeoutSec`."""
    timeout: Timeout | None = None
    """Alias of `download_timeoutSec`."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        faults: Faults = []
        if not self.sources:
            faults.append(("", "specifies no file", "set one of path, url and worker_path"))
        if self.headers is not None and self.download_headers is not None:
            faults.append(("download_headers", "is an alias of headers", "remove one of them"))
        # Three spellings exist in workflow files; at most one may be used.
        given = [key for key, value in self._timeouts() if value is not None]
        faults += [(key, f"is an alias of {given[0]}", "remove one of them") for key in given[1:]]
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
        """The sources, in the order in which they are tried."""
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
        """HTTP headers, from either spelling."""
        return self.headers or self.download_headers or {}

    @property
    def timeout_s(self) -> float:
        """Request timeout in seconds, from any spelling."""
        return next((value for _, value in self._timeouts() if value is not None), 60.0)


class EvalSpec(Block):
    """`data.eval`: the eval set. Eval loss is measured on it before and after training."""

    split: Text | None = None
    """Another split of the same dataset."""
    path: RowsPlace | None = None
    """Another file or folder, which is uploaded with the workflow, or a URL."""
    fraction: Annotated[float, Field(gt=0, lt=1), NotBool] | None = None
    """Fraction of the training rows, sampled with `training.seed` and removed from the training set."""
    max_samples: PositiveInt | None = None
    """Use at most this many rows."""

    @model_validator(mode="after")
    def _one_place(self) -> EvalSpec:
        if sum(value is not None for value in (self.split, self.path, self.fraction)) != 1:
            raise wrong("needs exactly one of split, path and fraction")
        return self


class RowsSpec(Block):
    """The keys of `spec.data` that select the source of the rows; exactly one source is required."""

    inline: ClassVar[str] = "prompts"
    """The key of inline rows."""

    dataset_name: Annotated[Text, ABuiltinDataset] | None = None
    """Hub id or local folder of a dataset."""
    config_name: Text | None = None
    """Configuration name of a Hub dataset."""
    split: Text = "train"
    """Split of the dataset, optionally with a slice as in `datasets`: `train[:5%]`."""
    revision: Revision | None = None
    """Branch, tag or commit on the Hub."""
    trust_remote_code: Annotated[
        bool, only(False, "datasets with custom code cannot be loaded", "remove it, or use false")
    ] = False
    """Always false: the `datasets` library no longer runs dataset scripts."""
    path: RowsPlace | None = None
    """File (JSONL, JSON, CSV, Parquet), saved dataset folder or archive, which is uploaded with the workflow; a URL; or
    `builtin:gsm8k`."""
    artifact: Text | None = None
    """Name of an artifact pushed with `tunefleet data push`."""
    jsonl: JsonlFile | None = None
    """A JSONL file with its own field names."""
    jsonl_path: RowsPlace | None = None
    """Alias of `jsonl.path`."""
    max_samples: PositiveInt | None = None
    """Use at most this many rows."""
    eval: EvalSpec | None = None
    """The eval set."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        faults = self._faults()
        if faults:
            raise many_wrong(faults)
        return self

    def _faults(self) -> Faults:
        keys = self.source_keys()
        given = [name for name in keys if getattr(self, name) is not None]
        hint = f"set exactly one of {', '.join(keys)}"
        faults: Faults = []
        if not given:
            faults.append(("", "has no data source", hint))
        faults.extend((name, f"cannot be combined with {given[0]}", hint) for name in given[1:])
        if given and "dataset_name" not in given:
            faults.extend(
                (name, "is only for dataset_name", "remove it, or name a Hub dataset with dataset_name")
                for name in ("config_name", "revision")
                if getattr(self, name) is not None
            )
        # Inline rows form a single set without named splits.
        if self.inline in given and self.eval is not None and self.eval.split is not None:
            faults.append(("eval.split", f"inline {self.inline} have no splits", "use eval.fraction or eval.path"))
        return faults

    @classmethod
    def source_keys(cls) -> tuple[str, ...]:
        """Return the source keys, exactly one of which must be set."""
        return ("dataset_name", "path", "artifact", "jsonl", "jsonl_path", cls.inline)

    @property
    def sources(self) -> tuple[DataSource, ...]:
        """The sources, in the order in which they are tried; only `jsonl` can have several."""
        if getattr(self, self.inline) is not None:
            return (DataSource("inline", f"data.{self.inline}", ""),)
        if self.jsonl is not None:
            return self.jsonl.sources
        for name, kind in _SINGLE_SOURCES:
            value: str | None = getattr(self, name)
            if value is not None:
                fetched = kind == "file" and is_url(value)
                return (DataSource("url" if fetched else kind, f"data.{name}", value),)
        # `_faults` requires exactly one source.
        raise AssertionError("a validated block has a source")

    @property
    def source(self) -> DataSource:
        """The first source."""
        return self.sources[0]
