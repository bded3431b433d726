"""Blocks of the tasks that call something: an address (`api`), Python code (`python`)."""

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
PROMPT: Final = "{{prompt}}"
"""Stands for each item in the texts of `api`."""
MAX_CODE_BYTES: Final = 256 * 1024
_MAX_PARAMETERS: Final = 200
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._ -]+\])?\s*([=<>!~;@ (].*)?")


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


class ApiResponseSpec(Block):
    """`api.response`: what is kept of an answer."""

    parse_json: bool = True
    """Give the answer as JSON; what is none stays a text."""
    return_body: bool = True
    """Keep the text of the answer."""
    include_headers: bool = False
    """Keep its headers."""
    max_body_bytes: Annotated[int, Field(ge=1, le=64 * 1024 * 1024), NotBool] = 200_000
    """Longer answers are cut."""
    raise_for_status: bool = True
    """An answer of 400 or above is an `error` of its item; without any item that has an answer the task fails."""


class ApiSpec(Block):
    """`spec.api`: the request. In its texts `{{prompt}}` stands for each item of `data`."""

    url: Url | None = None
    """Address; by default `NEBULA_API_BASE_URL` of the worker with `/v1/chat/completions`."""
    method: Annotated[Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"], BeforeValidator(_upper)] = "POST"
    """Method."""
    headers: Headers | None = None
    """Headers."""
    params: Annotated[dict[str, str | int | float | bool], Field(max_length=_MAX_PARAMETERS)] | None = None
    """Parameters of the address."""
    json_body: Any = Field(default=None, alias="json")
    """Body, sent as JSON."""
    body: Any = None
    """Body: a text as it is, anything else as JSON."""
    form: Any = Field(default=None, alias="data")
    """Body: a mapping as a form, a text as it is."""
    timeout_sec: Annotated[float, Field(gt=0, le=3600), NotBool] = 60.0
    """Seconds to wait for an answer."""
    verify_tls: bool = True
    """Check the certificate."""
    follow_redirects: bool = True
    """Follow redirections, to addresses that may be fetched."""
    retries: Annotated[int, Field(ge=0, le=10), NotBool] = 0
    """Further tries of a request that failed."""
    concurrency: Annotated[int, Field(ge=1, le=8), NotBool] = 8
    """Requests at once."""
    response: ApiResponseSpec = Field(default_factory=ApiResponseSpec)
    """What is kept of an answer."""

    @model_validator(mode="after")
    def _one_body(self) -> ApiSpec:
        bodies = (("json", self.json_body), ("body", self.body), ("data", self.form))
        given = [key for key, value in bodies if value is not None]
        if len(given) > 1:
            raise many_wrong([(key, f"cannot be given together with {given[0]}", None) for key in given[1:]])
        if given and self.method in {"GET", "HEAD"}:
            raise wrong(f"has no effect with method: {self.method}", "use params", at=given[0])
        if isinstance(self.form, list | int | float | bool):
            raise wrong("must be a mapping or a text", at="data")
        return self

    @property
    def has_prompt(self) -> bool:
        """Whether an item stands somewhere in it."""
        return _named_in((self.url, self.headers, self.params, self.json_body, self.body, self.form))


def _named_in(value: Any) -> bool:
    if isinstance(value, str):
        return PROMPT in value
    if isinstance(value, Mapping):
        return any(_named_in(each) for pair in value.items() for each in pair)
    return isinstance(value, list | tuple) and any(_named_in(each) for each in value)


def _code(value: str) -> str:
    size = len(value.encode())
    if size > MAX_CODE_BYTES:
        raise wrong(f"has {size:,} bytes; at most {MAX_CODE_BYTES:,} are allowed", "put it into a package")
    try:
        ast.parse(value)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f" in its line {line}" if line else ""
        raise wrong(f"is not Python{where}: {getattr(error, 'msg', None) or error}") from None
    return value


def _identifier(value: str) -> str:
    if not value.isidentifier() or keyword.iskeyword(value):
        raise wrong("is not the name of a function")
    return value


def _requirement(value: str) -> str:
    if not _REQUIREMENT.fullmatch(value.strip()):
        raise wrong("is not a requirement of pip", "write it like numpy==2.1")
    return value.strip()


class PythonInputSpec(Block):
    """`inputs[]` of a `python` task."""

    stage: Text
    """Stage or node whose result the function gets; the task depends on it."""
    mount_path: Annotated[
        None, only(None, "has no effect: nothing is mounted", "the function gets each folder as inputs[STAGE]")
    ] = Field(default=None, alias="mountPath")
    """Refused: nothing is mounted."""


class PythonOutputSpec(Block):
    """`spec.pythonOutput`."""

    max_bytes: Annotated[int, Field(ge=1, le=1 << 40), NotBool] = Field(default=1 << 30, alias="maxBytes")
    """Bytes that the function may leave in its folder."""


Code = Annotated[str, Field(min_length=1), AfterValidator(_code)]
FunctionName = Annotated[str, AfterValidator(_identifier)]
Requirements = Annotated[tuple[Annotated[Text, AfterValidator(_requirement)], ...], Field(max_length=200)]
Inputs = Annotated[tuple[Annotated[str | PythonInputSpec, one_of(PythonInputSpec, str)], ...], Field(max_length=200)]
Emits = Annotated[tuple[Text, ...], Field(max_length=1000)]
Runtime = Annotated[float, Field(gt=0, le=3600), NotBool]
