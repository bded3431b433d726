"""The base of every message: frozen, ignores fields that a newer peer adds."""

from __future__ import annotations

import unicodedata
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

# An integer from another process, limited to what every database can store.
Whole = Annotated[int, Field(ge=-(2**62), le=2**62)]
# A number from another process: finite, and small enough for further arithmetic.
Figure = Annotated[float, Field(ge=-1e15, le=1e15)]


def _name(value: str) -> str:
    if value != value.strip() or not value.isprintable() or value in {".", ".."} or "/" in value or "\\" in value:
        raise ValueError("must be one line of text without / and \\, and without spaces at the start or end")
    return value


# A name from users or processes that is safe in paths, URLs, terminals and web pages: no control characters, no marks
# that change the writing direction, no surrogates.
Name = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_name)]


def is_shown(character: str) -> bool:
    """Whether a character is visible, or a space of any width."""
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _line(value: str) -> str:
    if not all(map(is_shown, value)):
        raise ValueError("must be one line of text without invisible characters")
    return value


# A self-description of a process, or a path on another machine, safe in terminals and web pages.
Line = Annotated[str, Field(max_length=4096), AfterValidator(_line)]


def _parts(value: str) -> str:
    if any(part.strip() in {"", ".", ".."} for part in value.split("/")) or "\\" in value:
        raise ValueError("must be a name or a relative path without ..")
    return value


# The name of a file or folder from a task or user, or a relative path of names.
PathName = Annotated[Line, AfterValidator(_parts)]


class Message(BaseModel):
    """A message between processes of possibly different versions; unknown fields are ignored."""

    # `defer_build`: validators are built on first use, since a process needs a few of some three hundred messages.
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class ProcessBody(Message):
    """An HTTP request body from a process; unknown fields are ignored."""

    # Built at import, because FastAPI inspects the bodies of its routes.
    model_config = ConfigDict(defer_build=False)


class Body(BaseModel):
    """An HTTP request body from a user; unknown fields are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")
