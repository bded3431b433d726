"""Blocks of `api` and `python` tasks."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tunefleet.spec.base import (
    Block,
    Headers,
    NotBool,
    Text,
    Url,
    many_wrong,
    one_of,
    only,
    wrong,
)

Faults = list[tuple[str, str, str | None]]
# Placeholder of the item in the strings of `api`.
PROMPT: Final = "{{prompt}}"
MAX_CODE_BYTES: Final = 256 * 1024
_MAX_PARAMETERS: Final = 200
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._ -]+\])?\s*([=<>!~;@ (].*)?")


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


class ApiResponseSpec(Block):
    """`api.response`: which parts of a response are stored."""

    parse_json: bool = True
    """Parse the response as JSON; other responses stay text."""
    return_body: bool = True
    """Store the response body as text."""
    include_headers: bool = False
    """Store the response headers."""
    max_body_bytes: Annotated[int, Field(ge=1, le=64 * 1024 * 1024), NotBool] = 200_000
    """Maximum size of the stored body in bytes; longer bodies are truncated."""
    raise_for_status: bool = True
    """Treat a status of 400 or above as an `error` of its item; the task fails if no item succeeds."""


class ApiSpec(Block):
    """`spec.api`: the HTTP request. `{{prompt}}` in its strings is replaced by each item of `data`."""

    url: Url | None = None
    """URL; default: `/v1/chat/completions` below the worker's `TUNEFLEET_API_TASK_URL`."""
    method: Annotated[Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"], BeforeValidator(_upper)] = "POST"
    """HTTP method."""
    headers: Headers | None = None
    """HTTP headers."""
    params: Annotated[dict[str, str | int | float | bool], Field(max_length=_MAX_PARAMETERS)] | None = None
    """Query parameters."""
    json_body: Any = Field(default=None, alias="json")
    """Request body, sent as JSON."""
    body: Any = None
    """Request body: a string unchanged, any other value as JSON."""
    form: Any = Field(default=None, alias="data")
    """Request body: a mapping as a form, a string unchanged."""
    timeout_sec: Annotated[float, Field(gt=0, le=3600), NotBool] = 60.0
    """Request timeout, in seconds."""
    verify_tls: bool = True
    """Verify the TLS certificate."""
    follow_redirects: bool = True
    """Follow redirects to URLs that the worker may fetch."""
    retries: Annotated[int, Field(ge=0, le=10), NotBool] = 0
    """Maximum retries of a failed request."""
    concurrency: Annotated[int, Field(ge=1, le=8), NotBool] = 8
    """Maximum number of concurrent requests."""
    response: ApiResponseSpec = Field(default_factory=ApiResponseSpec)
    """Which parts of a response are stored."""

    @model_validator(mode="after")
    def _one_body(self) -> ApiSpec:
        bodies = (("json", self.json_body), ("body", self.body), ("data", self.form))
        given = [key for key, value in bodies if value is not None]
        if len(given) > 1:
            raise many_wrong([(key, f"cannot be combined with {given[0]}", None) for key in given[1:]])
        if given and self.method in {"GET", "HEAD"}:
            raise wrong(f"has no effect with method: {self.method}", "use params", at=given[0])
        if isinstance(self.form, list | int | float | bool):
            raise wrong("must be a mapping or a string", at="data")
        return self

    @property
    def has_prompt(self) -> bool:
        """Whether the request contains the item placeholder."""
        return _has_placeholder((self.url, self.headers, self.params, self.json_body, self.body, self.form))


def _has_placeholder(value: Any) -> bool:
    if isinstance(value, str):
        return PROMPT in value
    if isinstance(value, Mapping):
        return any(_has_placeholder(each) for pair in value.items() for each in pair)
    return isinstance(value, list | tuple) and any(_has_placeholder(each) for each in value)


def _code(value: str) -> str:
    size = len(value.encode())
    if size > MAX_CODE_BYTES:
        raise wrong(f"has {size:,} bytes; at most {MAX_CODE_BYTES:,} are allowed", "move it to a package")
    try:
        ast.parse(value)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f" (line {line})" if line else ""
        raise wrong(f"is not valid Python{where}: {getattr(error, 'msg', None) or error}") from None
    return value


def _identifier(value: str) -> str:
    if not value.isidentifier() or keyword.iskeyword(value):
        raise wrong("is not a valid function name")
    return value


def _requirement(value: str) -> str:
    if not _REQUIREMENT.fullmatch(value.strip()):
        raise wrong("is not a pip requirement", "write it like numpy==2.1")
    return value.strip()


class PythonInputSpec(Block):
    """`inputs[]` of a `python` task: an upstream result."""

    stage: Text
    """Stage or node whose result the function gets; becomes a dependency of the task."""
    mount_path: Annotated[
        None, only(None, "has no effect: nothing is mounted", "the function gets each folder as inputs[STAGE]")
    ] = Field(default=None, alias="mountPath")
    """Not supported: nothing is mounted."""


class PythonOutputSpec(Block):
    """`spec.pythonOutput`: limits of the output."""

    max_bytes: Annotated[int, Field(ge=1, le=1 << 40), NotBool] = Field(default=1 << 30, alias="maxBytes")
    """Maximum size of the files in the function's folder, in bytes."""


Code = Annotated[str, Field(min_length=1), AfterValidator(_code)]
FunctionName = Annotated[str, AfterValidator(_identifier)]
Requirements = Annotated[tuple[Annotated[Text, AfterValidator(_requirement)], ...], Field(max_length=200)]
Inputs = Annotated[tuple[Annotated[str | PythonInputSpec, one_of(PythonInputSpec, str)], ...], Field(max_length=200)]
Emits = Annotated[tuple[Text, ...], Field(max_length=1000)]
Runtime = Annotated[float, Field(gt=0, le=3600), NotBool]
