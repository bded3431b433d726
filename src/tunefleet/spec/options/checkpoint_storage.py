"""`spec.checkpoint`: initial weights, and how checkpoints are stored."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from tunefleet.spec.base import Block, Headers, RelativePath, Text, Timeout, Url, many_wrong, wrong

ArchiveFormat = Literal["auto", "tar", "tar.gz", "tgz", "tar.bz2", "tar.xz", "zip", "none"]

_LOAD_HINT: Final = "set path, taskId or url"


def _file_uri(value: str) -> str:
    if "://" in value and not value.startswith("file:///"):
        raise wrong("is not a file URI", "write file:///PATH or a path; for a web address use url with type: http")
    return value


def _basename(value: str) -> str:
    if "/" in value or "\\" in value or value in {".", ".."}:
        raise wrong("must be a file name", "without folders")
    return value


class CheckpointLoadSpec(Block):
    """`checkpoint.load`: a model or an adapter to start from. The first source that exists is used.

    Sources are tried in the order `path` or `uri`, `taskId`, `url`.
    """

    type: Literal["local", "http"] = "local"
    """`local`: a folder, an archive or a task; `http`: also a URL."""
    path: Text | None = None
    """Folder or archive on the submitting machine, which is uploaded with the workflow, or on the worker."""
    uri: Annotated[Text, AfterValidator(_file_uri)] | None = None
    """Alias of `path` that also accepts `file:///…`."""
    task_id: Text | None = Field(default=None, alias="taskId")
    """Id of the task whose model or adapter is loaded. The task counts as a dependency, as in `dependsOn`, and its
    files are kept until this task has ended."""
    # Both spellings exist in workflow files; only `taskId` is documented.
    task_id_too: Text | None = Field(default=None, alias="task_id")
    """Alias of `taskId`."""
    url: Url | None = None
    """URL of an archive; requires `type: http`."""
    filename: Annotated[Text, AfterValidator(_basename)] | None = None
    """With `taskId`: name of the file to load; default: the task's model or adapter."""
    base_url: Url | None = None
    """With `taskId`: URL of the server that has the task; default: the server of this task."""
    headers: Headers | None = None
    """HTTP headers of the request for the URL."""
    timeout_s: Timeout = Field(default=60.0, alias="timeoutSec")
    """Request timeout, in seconds."""
    archive_format: ArchiveFormat = "auto"
    """Archive format; `auto` detects it from the content, `none` uses the file unchanged."""
    subdir: RelativePath | None = None
    """Folder inside the archive; default: the single top-level folder, if there is one."""

    @model_validator(mode="after")
    def _one_place(self) -> CheckpointLoadSpec:
        # All checks run, so that one validation reports every error.
        leave = "remove one of them"
        checks: tuple[tuple[bool, str, str, str], ...] = (
            (
                self.place is None and self.task is None and self.url is None,
                "",
                "specifies no weights to load",
                _LOAD_HINT,
            ),
            (None not in (self.path, self.uri), "uri", "is an alias of path", leave),
            (None not in (self.task_id, self.task_id_too), "task_id", "is an alias of taskId", leave),
            (self.url is not None and self.type == "local", "url", "is not used with type: local", "set type: http"),
            (
                self.type == "http" and self.url is None and self.task is None and self.place is None,
                "type",
                "needs a URL",
                "add url, or taskId",
            ),
            (self.filename is not None and self.task is None, "filename", "has no effect without taskId", "add taskId"),
            (self.base_url is not None and self.task is None, "base_url", "has no effect without taskId", "add taskId"),
            (
                self.headers is not None and self.url is None and self.base_url is None,
                "headers",
                "has no effect: nothing is fetched from a URL",
                "remove it",
            ),
        )
        faults = [(at, message, hint) for failed, at, message, hint in checks if failed]
        if faults:
            # Without any source, the other errors only follow from that.
            raise many_wrong(faults[:1] if not faults[0][0] else faults)
        return self

    @property
    def place(self) -> str | None:
        """The folder or archive from `path` or `uri`."""
        if self.uri is None:
            return self.path
        return self.uri.removeprefix("file://")

    @property
    def task(self) -> str | None:
        """The id of the task from either spelling."""
        return self.task_id or self.task_id_too


def pointer_of(load: CheckpointLoadSpec | None) -> str:
    """Return the dotted path below `spec` of the key that names the folder or archive to load."""
    return "checkpoint.load.path" if load is None or load.uri is None else "checkpoint.load.uri"


class LoadedCheckpointSpec(Block):
    """`spec.checkpoint` of a task that does not train."""

    load: CheckpointLoadSpec | None = None
    """Weights to use instead of those of `model.source`."""


class CheckpointSpec(Block):
    """`spec.checkpoint`: initial weights, and how checkpoints are stored."""

    load: CheckpointLoadSpec | None = None
    """Weights to start from; optimizer state and step count are reset."""
    compress: Literal["none", "zstd"] = "none"
    """Compression of stored checkpoints; runs in the background, after the save."""
    asynchronous: bool = False
    """Write checkpoints in the background from a copy in memory, which shortens the pause of a save."""
    upload: bool = True
    """Upload the newest complete and the best checkpoint to the server in the background, so that another worker can
    resume from them."""
