"""`spec.checkpoint`: where the weights start from, and how checkpoints are kept."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from tunefleet.spec.base import Block, Headers, RelativePath, Text, Timeout, Url, many_wrong, wrong

ArchiveFormat = Literal["auto", "tar", "tar.gz", "tgz", "tar.bz2", "tar.xz", "zip", "none"]

_LOAD_HINT: Final = "give path, taskId or url"


def _file_uri(value: str) -> str:
    if "://" in value and not value.startswith("file:///"):
        raise wrong("is not a file", "write file:///PATH or a path; an address is written as url with type: http")
    return value


def _basename(value: str) -> str:
    if "/" in value or "\\" in value or value in {".", ".."}:
        raise wrong("must be the name of a file", "without folders")
    return value


class CheckpointLoadSpec(Block):
    """`checkpoint.load`: weights to start from: a model, or an adapter; from the first place that is there.

    The order of the places is `path` or `uri`, `taskId`, `url`.
    """

    type: Literal["local", "http"] = "local"
    """`local`: a folder, archive or task; `http`: an address, too."""
    path: Text | None = None
    """Folder or archive on the machine that submits, which travels with the submit, or on the worker."""
    uri: Annotated[Text, AfterValidator(_file_uri)] | None = None
    """The same as `path`, also as `file:///…`."""
    task_id: Text | None = Field(default=None, alias="taskId")
    """Id of the task that makes it: its model or adapter is taken. It is waited for as one in `dependsOn`, and is not
    removed before who loads it has ended."""
    task_id_too: Text | None = Field(default=None, alias="task_id")
    """The same as `taskId`."""
    url: Url | None = None
    """Address of an archive; needs `type: http`."""
    filename: Annotated[Text, AfterValidator(_basename)] | None = None
    """With `taskId`: which of its files; by default its model or adapter."""
    base_url: Url | None = None
    """With `taskId`: the server that has it; by default the one that placed this task."""
    headers: Headers | None = None
    """Sent with the request for the address."""
    timeout_s: Timeout = Field(default=60.0, alias="timeoutSec")
    """Seconds to wait for an answer."""
    archive_format: ArchiveFormat = "auto"
    """Format of the archive; `auto` looks at its content, `none` takes the file as it is."""
    subdir: RelativePath | None = None
    """Folder inside it; by default a single top-level folder is entered."""

    @model_validator(mode="after")
    def _one_place(self) -> CheckpointLoadSpec:
        leave = "leave one of them out"
        checks: tuple[tuple[bool, str, str, str], ...] = (
            (self.place is None and self.task is None and self.url is None, "", "names no weights", _LOAD_HINT),
            (None not in (self.path, self.uri), "uri", "means the same as path", leave),
            (None not in (self.task_id, self.task_id_too), "task_id", "means the same as taskId", leave),
            (self.url is not None and self.type == "local", "url", "is an address", "write type: http"),
            (
                self.type == "http" and self.url is None and self.task is None and self.place is None,
                "type",
                "needs an address",
                "add url, or taskId",
            ),
            (self.filename is not None and self.task is None, "filename", "is a file of a task", "add taskId"),
            (self.base_url is not None and self.task is None, "base_url", "has no effect without taskId", "add taskId"),
            (
                self.headers is not None and self.url is None and self.base_url is None,
                "headers",
                "has no effect: nothing is fetched from an address",
                "leave it out",
            ),
        )
        faults = [(at, message, hint) for failed, at, message, hint in checks if failed]
        if faults:
            raise many_wrong(faults[:1] if not faults[0][0] else faults)
        return self

    @property
    def place(self) -> str | None:
        """The folder or archive, wherever it was written."""
        if self.uri is None:
            return self.path
        return self.uri.removeprefix("file://")

    @property
    def task(self) -> str | None:
        """The task that has made it, wherever it was written."""
        return self.task_id or self.task_id_too


def pointer_of(load: CheckpointLoadSpec | None) -> str:
    """Return the dotted path below `spec` of the key that names the folder or archive to start from."""
    return "checkpoint.load.path" if load is None or load.uri is None else "checkpoint.load.uri"


class LoadedCheckpointSpec(Block):
    """`spec.checkpoint` of a task that does not train."""

    load: CheckpointLoadSpec | None = None
    """Weights to answer with, instead of those of `model.source`."""


class CheckpointSpec(Block):
    """`spec.checkpoint`: where the weights start from, and how checkpoints are kept."""

    load: CheckpointLoadSpec | None = None
    """Weights to start from; optimizer and step count start anew."""
    compress: Literal["none", "zstd"] = "none"
    """Compress the checkpoints that are kept; in the background, after the save."""
    asynchronous: bool = False
    """Write checkpoints in the background from a copy in memory, so that a save stops the training for less."""
    upload: bool = True
    """Send the newest whole and the best checkpoint to the server in the background, so that another worker can go on
    from them."""
