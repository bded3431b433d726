"""Answers in parts, errors over the wire, and what Redis' refusals mean."""

from __future__ import annotations

import pytest
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as GoneError

from tunefleet.errors import (
    ConflictError,
    ForbiddenError,
    MachineError,
    NotFoundError,
    StoreError,
    TunefleetError,
    UnreachableError,
)
from tunefleet.schemas.worker_link import Command, Desired, ExchangeReply, InputRef, MergedTask, Offer
from tunefleet.transport.redis import chunking
from tunefleet.transport.redis.errors import explained, shown
from tunefleet.transport.redis.keys import Keys, check_url, stale_after_s

URL = "redis://worker:secret@redis.lab:6380/2"


def test_an_answer_survives_being_taken_apart() -> None:
    merged = MergedTask(token="c", task_id="t2", workflow_id="wf", attempt=2, name="child", spec={"a": 1})
    offer = Offer(
        token="p", task_id="t1", workflow_id="wf", attempt=1, kind="echo", name="parent", spec={"b": [1, 2]},
        inputs={"data.path": InputRef(digest="d", name="n")}, merged=(merged,),
    )  # fmt: skip
    reply = ExchangeReply(
        offers=(offer,),
        accepted=("x",),
        discard=("gone",),
        commands=(Command(token="p", command_id="c1", command="save"),),
        desired=(Desired(token="p", action="pause", generation=3),),
    )
    entry = chunking.dispatch(offer, "w")
    assert {"task_id", "task", "task_type", "assigned_worker", "dispatched_at", "parent_task_id"} <= entry.keys()
    told = chunking.wishes(reply.commands, reply.desired)
    closing = chunking.closing(reply)
    assert (closing["offers"], closing["wishes"]) == ("1", "2")
    assert chunking.reply_of(closing["body"], [chunking.offer_of(entry)], told) == reply


def test_a_store_that_is_away_is_a_bad_moment_of_the_server_and_no_end_of_a_worker() -> None:
    away = StoreError("The database cannot be reached.", hint="Ask again in a moment.")
    found = chunking.raised(chunking.refusal(away)["error"])
    assert type(found) is UnreachableError
    assert "The database cannot be reached." in str(found)


@pytest.mark.parametrize("kind", [ConflictError, ForbiddenError, NotFoundError])
def test_an_error_arrives_as_what_it_was(kind: type[TunefleetError]) -> None:
    found = chunking.raised(chunking.refusal(kind("What.", hint="How."))["error"])
    assert (type(found), found.message, found.hint) == (kind, "What.", "How.")


@pytest.mark.parametrize(
    ("error", "first", "kind", "words"),
    [
        (
            NoPermissionError("this user has no permissions"),
            True,
            MachineError,
            "user 'worker' has no permission for XADD tasks.events",
        ),
        (
            NoPermissionError("this user has no permissions"),
            False,
            UnreachableError,
            "user 'worker' has no permission for XADD",
        ),
        (AuthenticationError("invalid username-password pair"), True, MachineError, "login of the user 'worker'"),
        (OutOfMemoryError("command not allowed"), True, UnreachableError, "is full (maxmemory): it rejects XADD"),
        (ReadOnlyError("You can't write"), False, UnreachableError, "read-only replica"),
        (BusyLoadingError("loading"), False, UnreachableError, "still loading"),
        (ResponseError("WRONGTYPE"), False, UnreachableError, "rejects XADD tasks.events: WRONGTYPE"),
        (GoneError("refused"), True, UnreachableError, "does not respond"),
        (OSError("no route"), True, UnreachableError, "does not respond"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_a_failed_command_means(error: Exception, first: bool, kind: type[Exception], words: str) -> None:
    found = explained(error, URL, "XADD tasks.events", first=first)
    assert type(found) is kind
    assert words in str(found)
    assert "redis://redis.lab:6380/2" in str(found)
    assert "secret" not in str(found)


def test_a_url_is_shown_without_its_password_and_checked() -> None:
    assert shown(URL) == "redis://redis.lab:6380/2"
    assert shown("unix:///run/redis.sock?db=1") == "unix:///run/redis.sock"
    for right in (URL, "redis://host", "redis://host/", "rediss://host/3", "unix:///run/redis.sock?db=1"):
        check_url(right)
    for wrong in ("localhost:6379", "http://host", ""):
        with pytest.raises(MachineError, match="REDIS_URL"):
            check_url(wrong)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://127.0.0.1:99999/0", "the port is not a number"),
        ("redis://127.0.0.1:0/0", "the port is not a number"),
        ("redis://[::1/0", "the port is not a number"),
        ("redis://:se/cret@host/0", "the port is not a number"),
        ("redis://host:6379/abc", "the database is not a number"),
        ("redis://host:6379/0/secret", "the database is not a number"),
        ("redis://host:6379/?db=abc", "the database is not a number"),
        ("unix:///run/redis.sock?db=abc", "the database is not a number"),
    ],
)
def test_a_port_or_a_database_that_is_none_is_named_and_nothing_of_a_password(url: str, words: str) -> None:
    with pytest.raises(MachineError) as caught:
        check_url(url)
    assert words in str(caught.value)
    assert "cret" not in str(caught.value)


def test_keys_are_the_guides_behind_the_prefix() -> None:
    keys, own = Keys(), Keys("jobs", "lab:")
    assert (keys.ids, keys.worker("a"), keys.heartbeat("a")) == ("workers:ids", "worker:a", "worker:a:hb")
    assert (keys.events, keys.worker_events, keys.inbox("a")) == ("tasks.events", "workers.events", "tasks:a")
    assert (own.events, own.inbox("a")) == ("lab:jobs.events", "lab:jobs:a")
    assert own.elastic_disabled == "lab:workers:elastic_disabled"
    assert (stale_after_s(5), stale_after_s(30), stale_after_s(45)) == (120, 120, 180)


def test_an_offer_that_cannot_be_read_keeps_its_names() -> None:
    offer = Offer(token="t", task_id="task-1", workflow_id="wf", attempt=1, kind="echo", name="n", spec={})
    entry = chunking.dispatch(offer, "w")
    entry["offer"] = entry["offer"].replace('"attempt":1', '"attempt":"first"')
    read = chunking.offer_of(entry)
    assert (read.token, read.task_id, read.kind) == ("t", "task-1", "echo")
    assert (read.unreadable or "").startswith("attempt must be an integer")
