"""The base of every message: frozen, tolerant of fields that a newer peer adds."""

from __future__ import annotations

import unicodedata
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

# A whole number as another process says it: one that every store can hold.
Whole = Annotated[int, Field(ge=-(2**62), le=2**62)]
# A number as another process says it: finite, and of a size with which one can go on counting.
Figure = Annotated[float, Field(ge=-1e15, le=1e15)]


def _name(value: str) -> str:
    if value != value.strip() or not value.isprintable() or value in {".", ".."} or "/" in value or "\\" in value:
        raise ValueError("must be one line of text without / and \\, that neither begins nor ends with a blank")
    return value


# What people or processes call something: it can stand in a path, an address, a terminal and a page. Whatever is no
# text for a line (control characters, marks that turn the direction of writing, halves of characters) is refused.
Name = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_name)]


def is_shown(character: str) -> bool:
    """Whether a character can be seen in a line, or is a blank of any width."""
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _line(value: str) -> str:
    if not all(map(is_shown, value)):
        raise ValueError("must be one line of text without characters that cannot be shown")
    return value


# What a process says of itself, or a path of another machine: it can stand in a terminal and a page.
Line = Annotated[str, Field(max_length=4096), AfterValidator(_line)]


def _parts(value: str) -> str:
    if any(part.strip() in {"", ".", ".."} for part in value.split("/")) or "\\" in value:
        raise ValueError("must be a name, or a path of names, that leads nowhere else")
    return value


# What a task or a person calls a file or folder: a name, or several with slashes between them.
PathName = Annotated[Line, AfterValidator(_parts)]


class Message(BaseModel):
    """A message between processes of possibly different versions; unknown fields are ignored.

    Its validator is built when the first one is made: a process uses a few of some three hundred.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class ProcessBody(Message):
    """An HTTP request body that a process writes; built at once, for FastAPI looks into the bodies of its routes."""

    model_config = ConfigDict(defer_build=False)


class Body(BaseModel):
    """An HTTP request body that a person writes; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
