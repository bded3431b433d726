"""The base of every message: frozen, tolerant of fields that a newer peer adds."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """A message between processes of possibly different versions; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Body(BaseModel):
    """An HTTP request body that a person writes; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
