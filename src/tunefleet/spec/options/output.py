"""`spec.output`: where results go, and which files are delivered."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tunefleet.spec.base import (
    BUCKET_URL,
    Block,
    Headers,
    NotBool,
    RelativePath,
    Text,
    Timeout,
    as_list,
    is_url,
    many_wrong,
    wrong,
)
from tunefleet.spec.expressions.placeholders import Secret, whole

_LONGEST_NAME: Final = 255
_LOGS: Final = frozenset({"train.log", "worker.log", "log", "logs"})
_RETRY: Final = ("retries", "retry_backoff_s")
_KEYS: Final = ("access_key", "secret_key")
# Feature of a worker that can write to a bucket.
S3: Final = "s3"
_OF_TYPE: Final = {
    "local": ("path",),
    "http": ("url", "method", "headers", "timeout_s", *_RETRY),
    "s3": ("url", *_KEYS, *_RETRY),
}
_SHELL_EXPANSION: Final = re.compile(r"~|\$[A-Za-z_]")


def _named(value: str) -> str:
    parts = [part for part in value.split("/") if part not in {"", "."}]
    if not parts or any(len(part.encode()) > _LONGEST_NAME for part in parts):
        raise wrong("must be the name of a file or folder", f"at most {_LONGEST_NAME} bytes between two slashes")
    name = "/".join(parts)
    return "logs" if name in _LOGS else name


# A file or folder, with or without a trailing slash; all names of logs become `logs`.
Named = Annotated[RelativePath, AfterValidator(_named)]


def _folder(value: str) -> str:
    # The worker must not write outside of the folders that its operator allows.
    if "://" in value or ".." in value.replace("\\", "/").split("/"):
        raise wrong("must be a folder", "an absolute path, or one below TUNEFLEET_RESULTS_DIR, without ..")
    if _SHELL_EXPANSION.match(value) or not value.isprintable():
        raise wrong("must be a literal path", "~ and $ are not expanded: write an absolute path on the worker")
    return value


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _place(value: str) -> str:
    # `.` and `..` in a key are literal in S3, but not for most tools that list it.
    if value.startswith("s3://"):
        if not BUCKET_URL.fullmatch(value) or {"", ".", ".."} & set(value.rstrip("/").split("/")[3:]) or "${" in value:
            raise wrong("is not a valid bucket URL", "write s3://BUCKET/PREFIX, without a secret in it")
        return value
    if not is_url(value):
        raise wrong("must be a URL", "write one that starts with http://, https:// or s3://")
    return value


def _secret(value: str) -> str:
    # Only secrets: a literal key would be stored with the workflow.
    if not isinstance(whole(value), Secret):
        raise wrong("must name a secret of the worker", "write ${secret:NAME}")
    return value


class DestinationSpec(Block):
    """`output.destination`: where results are delivered, in addition to the server."""

    type: Literal["local", "http", "s3"] = "local"
    """`local`: a folder on the worker. `http`: a URL that receives the result and the files. `s3`: a bucket for both.
    `http` and `s3` also create an archive, `final_model.tar.gz` or `final_lora.tar.gz`."""
    path: Annotated[Text, AfterValidator(_folder)] | None = None
    """With `local`: folder; the task's files are in `PATH/TASK_ID`. A relative path is below
    `TUNEFLEET_RESULTS_DIR`."""
    url: Annotated[Text, AfterValidator(_place)] | None = None
    """With `http`: URL for the result; files go to `URL/TASK_ID/files`. Default: the server of the task. With `s3`:
    `s3://BUCKET/PREFIX`; files go to `PREFIX/TASK_ID/NAME`, the result to `results.json` next to them. The S3 endpoint
    is Amazon's, or the worker's `TUNEFLEET_S3_ENDPOINT`."""
    access_key: Annotated[Text, AfterValidator(_secret)] | None = None
    """With `s3`: access key with write permission, as `${secret:NAME}`. The worker's own keys are never used."""
    secret_key: Annotated[Text, AfterValidator(_secret)] | None = None
    """With `s3`: secret of the access key, as `${secret:NAME}`."""
    method: Annotated[Literal["POST", "PUT"], BeforeValidator(_upper)] = "POST"
    """With `http`: method of the request with the result; files are always sent with POST."""
    headers: Headers | None = None
    """With `http`: headers of each request."""
    timeout_s: Timeout = Field(default=30.0, alias="timeoutSec")
    """With `http`: request timeout, in seconds."""
    retries: Annotated[int, Field(ge=0, le=100), NotBool] | None = None
    """With `http` or `s3`: retries of a failed delivery; default: retry for the worker's
    `TUNEFLEET_DELIVERY_PATIENCE_S` (one day). The task itself does not run again."""
    retry_backoff_s: Annotated[float, Field(ge=0, le=3600), NotBool] = Field(default=0.8, alias="retryBackoffSec")
    """With `retries`: seconds before the first retry; doubled for each further one."""

    @model_validator(mode="after")
    def _fitting(self) -> DestinationSpec:
        # Options of another type are rejected rather than ignored.
        own = _OF_TYPE[self.type]
        faults: list[tuple[str, str, str | None]] = []
        for name in dict.fromkeys(each for keys in _OF_TYPE.values() for each in keys):
            if name not in own and name in self.model_fields_set and getattr(self, name) is not None:
                key = type(self).model_fields[name].alias or name
                wanted = " or ".join(kind for kind, keys in _OF_TYPE.items() if name in keys)
                faults.append((key, f"has no effect with type: {self.type}", f"write type: {wanted}, or leave it out"))
        if self.type == "s3":
            faults += [(name, "is required with type: s3", None) for name in ("url", *_KEYS) if not getattr(self, name)]
        if self.url is not None and self.type != "local" and self.url.startswith("s3://") != (self.type == "s3"):
            wanted = "s3" if self.url.startswith("s3://") else "http"
            faults.append(("url", f"does not match type: {self.type}", f"write type: {wanted}"))
        if faults:
            raise many_wrong(faults)
        return self


class OutputSpec(Block):
    """`spec.output`: what is delivered, and where."""

    destination: DestinationSpec = Field(default_factory=DestinationSpec)
    """Destination of the results."""
    artifacts: Annotated[tuple[Named, ...], BeforeValidator(as_list)] = ()
    """Names of further outputs. `responses.json` (or `results.json`), `logs`, `final_lora` or `final_model` are always
    delivered; a name with `.tar.gz` also requests the archive. Any other file or folder in the task's folder is
    delivered unchanged; missing ones are reported in the result's `warnings` and in `manifest.json`."""

    def wants_archive(self, name: str) -> bool:
        """Whether to create `<name>.tar.gz`.

        Args:
            name: Name of the folder, `final_lora` or `final_model`.
        """
        return self.destination.type in {"http", "s3"} or f"{name}.tar.gz" in self.artifacts
