"""What is meant by the beginning of an id."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tunefleet.cli.options import one_federation
from tunefleet.errors import ConflictError


def test_a_federation_is_meant_by_its_number_its_id_or_a_beginning_that_no_other_has() -> None:
    found = SimpleNamespace(items=[SimpleNamespace(id=id_) for id_ in ("fed-3f9c", "fed-3f1a", "fed-b07e")])
    client: Any = SimpleNamespace(federations=SimpleNamespace(list=lambda limit: found))
    meant = {"3": "3", "fed-b": "fed-b07e", "b0": "fed-b07e", "fed-3f9c": "fed-3f9c", "fed-old": "fed-old"}
    assert {name: one_federation(client, name) for name in meant} == meant
    with pytest.raises(ConflictError, match="Several federations begin with fed-3f") as caught:
        one_federation(client, "fed-3f")
    assert caught.value.hint == "Name one of them: fed-3f9c, fed-3f1a."
