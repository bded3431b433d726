"""Every name that enters is held to one type, whoever sends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from tests.hostile import HARMLESS, NAMES
from tunefleet.schemas.api import ArtifactCreate, FileEntry, KeyCreate
from tunefleet.schemas.enrollment import InvitationCreate, JoinRequest
from tunefleet.schemas.federated import JobCreate
from tunefleet.schemas.notify import ChannelCreate
from tunefleet.schemas.projects import ProjectCreate
from tunefleet.schemas.training_protocol.jobs import JobRegistration
from tunefleet.schemas.worker_link import Capabilities, ExchangeRequest, RegisterRequest
from tunefleet.spec.documents.stages import task_name
from tunefleet.spec.documents.workflow import Metadata
from tunefleet.spec.options.resources import ResourcesSpec

PATHS = {
    "nothing",
    "a blank",
    "blanks around",
    "here",
    "above",
    "a path",
    "an absolute path",
    "a folder",
    "a folder of Windows",
}
CAPABILITIES = Capabilities(
    version="0", hostname="h", executors=(), slots={}, cpu_count=1, memory_total_bytes=1, memory_free_bytes=1,
    disk_free_bytes=1,
)  # fmt: skip


def register(**changes: str) -> RegisterRequest:
    known: dict[str, Any] = {"worker_id": "w", "session": "s", "state_id": "i", "capabilities": CAPABILITIES}
    return RegisterRequest(**{**known, **changes})


ANY: dict[str, Callable[[str], object]] = {
    "a worker": lambda name: register(worker_id=name),
    "its process": lambda name: register(session=name),
    "its folder": lambda name: register(state_id=name),
    "a worker that speaks": lambda name: ExchangeRequest(worker_id=name, session="s"),
    "a process that speaks": lambda name: ExchangeRequest(worker_id="w", session=name),
    "a key": lambda name: KeyCreate(name=name),
    "the owner of a key": lambda name: KeyCreate(name="k", owner=name),
    "the owner of an invitation": lambda name: InvitationCreate(owner=name),
    "a machine that joins": lambda name: JoinRequest(token="t", secret_hash="0" * 64, name=name),
    "a federation": lambda name: JobCreate(name=name),
}
FILE = FileEntry(path="a", digest="0" * 64, size_bytes=1)
WIDER: dict[str, tuple[Callable[[str], object], set[str]]] = {
    "an artifact": (
        lambda name: ArtifactCreate(name=name, files=(FILE,), digest="0" * 64),
        {"a folder", "blanks around"},
    ),
    "the kind of an artifact": (
        lambda name: ArtifactCreate(name="a", kind=name, files=(FILE,), digest="0" * 64),
        set(),
    ),
    "a machine": (lambda name: CAPABILITIES.model_validate({**CAPABILITIES.model_dump(), "hostname": name}), PATHS),
    "a tag": (lambda name: CAPABILITIES.model_validate({**CAPABILITIES.model_dump(), "tags": [name]}), PATHS),
    "a job of another program": (lambda name: JobRegistration(job_id="j", name=name), PATHS),
    "whose it is": (lambda name: JobRegistration(job_id="j", user_id=name), PATHS),
    "its model": (lambda name: JobRegistration(job_id="j", model_name=name), PATHS),
    "its data": (lambda name: JobRegistration(job_id="j", dataset_path=name), PATHS),
    "the owner of a workflow": (lambda name: Metadata(owner=name), PATHS - {"nothing", "a blank"}),
    "a tag that a task wants": (lambda name: ResourcesSpec(tags=[name]), PATHS - {"nothing", "a blank"}),
    "an annotation": (lambda name: Metadata(annotations={name: 1}), PATHS | {"very long"}),
    "what an annotation says": (
        lambda name: Metadata(annotations={"a": [{"b": name}]}),
        PATHS | {"very long", "two lines", "a tab"},
    ),
}
"""What may be a path, or be called like one, because nobody goes there by it: how it is made, and what enters."""
NARROWER: dict[str, Callable[[str], object]] = {
    "an invited worker": lambda name: InvitationCreate(worker_id=name),
    "a channel": lambda name: ChannelCreate(name=name, to="https://example.org"),
    "a project": lambda name: ProjectCreate(name=name),
}


@pytest.mark.parametrize("place", [*ANY, *NARROWER])
@pytest.mark.parametrize("what", NAMES)
def test_a_hostile_name_does_not_enter(place: str, what: str) -> None:
    with pytest.raises(ValidationError):
        {**ANY, **NARROWER}[place](NAMES[what])


@pytest.mark.parametrize("place", WIDER)
@pytest.mark.parametrize("what", NAMES)
def test_what_may_be_a_path_is_one_line_all_the_same(place: str, what: str) -> None:
    make, enter = WIDER[place]
    if what in enter:
        make(NAMES[what])
    else:
        with pytest.raises(ValidationError):
            make(NAMES[what])


@pytest.mark.parametrize("what", [what for what in NAMES if what != "blanks around"])
def test_a_hostile_name_of_a_task_does_not_enter(what: str) -> None:
    with pytest.raises(ValueError, match="must be one line"):
        task_name(NAMES[what])


@pytest.mark.parametrize("place", ANY)
@pytest.mark.parametrize("name", HARMLESS)
def test_what_people_call_things_enters(place: str, name: str) -> None:
    ANY[place](name)
