"""`spec.output` and `spec.postprocess`: where results go, which files are delivered, exports of answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from tunefleet.spec.base import (
    BUCKET_URL,
    Block,
    Headers,
    NotBool,
    RelativePath,
    Text,
    Timeout,
    as_block,
    as_list,
    is_url,
    many_wrong,
    one_of_words,
    wrong,
)
from tunefleet.spec.expressions.placeholders import Secret, whole
from tunefleet.validation_errors import show

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
ExportOrigin = Literal["literal", "prompt", "output", "metadata", "item"]


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
                faults.append((key, f"has no effect with type: {self.type}", f"set type: {wanted}, or remove it"))
        if self.type == "s3":
            faults += [(name, "is required with type: s3", None) for name in ("url", *_KEYS) if not getattr(self, name)]
        if self.url is not None and self.type != "local" and self.url.startswith("s3://") != (self.type == "s3"):
            wanted = "s3" if self.url.startswith("s3://") else "http"
            faults.append(("url", f"does not match type: {self.type}", f"set type: {wanted}"))
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


class ExportField(Block):
    """A field of an exported JSONL line."""

    origin: Annotated[ExportOrigin, BeforeValidator(one_of_words({}))] | None = Field(default=None, alias="from")
    """Source of the value: the prompt, the output, a key of the item's metadata or of the item, or a literal."""
    source: Annotated[ExportOrigin, BeforeValidator(one_of_words({}))] | None = None
    """Alias of `from`."""
    key: Text | None = None
    """Key in `metadata` or `item`."""
    value: str | int | float | bool | None = None
    """Value of a `literal`."""
    literal: str | int | float | bool | None = None
    """Alias of `value`."""
    fallback: Annotated[Any, WithJsonSchema({"type": ["string", "object"]})] = None
    """Field to use if this one has no value."""
    default: str | int | float | bool | None = None
    """Default if neither field has a value."""

    @model_validator(mode="after")
    def _consistent(self) -> ExportField:
        origin = self.origin or self.source
        value = self.value if self.value is not None else self.literal
        leave = "remove one of them"
        checks: tuple[tuple[bool, str, str, str | None], ...] = (
            (origin is None, "from", "is required", "one of literal, prompt, output, metadata, item"),
            (None not in (self.origin, self.source), "source", "is an alias of from", leave),
            (None not in (self.value, self.literal), "literal", "is an alias of value", leave),
            (origin in {"metadata", "item"} and self.key is None, "key", f"is required with from: {origin}", None),
            (
                origin in {"literal", "prompt", "output"} and self.key is not None,
                "key",
                f"has no effect with from: {origin}",
                leave,
            ),
            (origin == "literal" and value is None, "value", "is required with from: literal", None),
            (origin != "literal" and value is not None, "value", f"has no effect with from: {origin}", "use default"),
        )
        faults = [(at, message, hint) for failed, at, message, hint in checks if failed]
        # The fallback is a field itself; it is validated here, since the annotation is `Any`.
        if not faults and self.fallback is not None:
            _export_field(self.fallback)
        if faults:
            raise many_wrong(faults)
        return self

    @property
    def kind(self) -> ExportOrigin | None:
        """The source of the value from either spelling."""
        return self.origin or self.source

    @property
    def text(self) -> str | int | float | bool | None:
        """The value of a literal from either spelling."""
        return self.value if self.value is not None else self.literal

    @property
    def other(self) -> ExportField | None:
        """The fallback field, parsed."""
        if self.fallback is None:
            return None
        return ExportField.model_validate(_export_field(self.fallback), by_alias=True, by_name=False)


def _export_field(value: Any) -> Any:
    """Expand `prompt`, `output`, `metadata.KEY` and `item.KEY` to mappings; any other string is a literal."""
    if isinstance(value, ExportField):
        return value
    if isinstance(value, Mapping):
        return as_block(ExportField, value)
    if not isinstance(value, str):
        raise wrong("must be a string, or a mapping with from")
    # A string such as `metadata.KEY` is a reference, any other one a literal.
    head, dot, key = value.partition(".")
    if value in {"prompt", "output"}:
        return {"from": value}
    if head in {"metadata", "item"} and dot and key:
        return {"from": head, "key": key}
    return {"from": "literal", "value": value}


class JsonlExportSpec(Block):
    """`postprocess.jsonl_export`: a JSONL file with all answers, usable as training data."""

    path: RelativePath
    """File in the task's folder, such as `artifacts/pairs.jsonl`."""
    fields: Annotated[dict[str, Annotated[ExportField, BeforeValidator(_export_field)]], Field(min_length=1)]
    """Field name → value: `prompt`, `output`, `metadata.KEY`, `item.KEY`, a literal, or a mapping."""
    required_fields: tuple[Text, ...] = ()
    """Fields that must have a value in every line; otherwise the task fails."""

    @model_validator(mode="after")
    def _known(self) -> JsonlExportSpec:
        unknown = [
            (f"required_fields.{index}", f"{show(name)} is not one of fields", "add it to fields")
            for index, name in enumerate(self.required_fields)
            if name not in self.fields
        ]
        if unknown:
            raise many_wrong(unknown)
        return self


class PostprocessSpec(Block):
    """`spec.postprocess`: export of the answers."""

    jsonl_export: JsonlExportSpec | None = None
    """JSONL file with all answers."""
