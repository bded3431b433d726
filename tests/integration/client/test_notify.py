"""Notifications from end to end: a channel made on the command line, a task that ends, a message that arrives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.receiver import Receiver, receiving
from tests.integration.api.support import ECHO, HandWorker, Running, is_problem, until
from tests.integration.client.conftest import Cli
from tunefleet.cli import options
from tunefleet.client import Client
from tunefleet.schemas.notify import ChannelView, NotificationView


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def test_the_command_line_makes_tests_and_removes_a_channel(
    cli: Cli, client: Client, hand: HandWorker, receiver: Receiver
) -> None:
    assert cli("notify").out == "No notification channels yet. Add one with `tunefleet notify add`.\n"
    added = cli("notify", "add", "ci", f"{receiver.url}/hook/hush", "--on", "done, failed")
    assert added.code == 0
    assert "whsec_" in added.out
    listed = cli("notify", "ls").out
    assert "done, failed" in listed
    assert f"{receiver.url}/…" in listed
    assert "hush" not in listed
    (channel,) = [ChannelView.model_validate(each) for each in cli("notify", "ls", "--json").json]
    assert (channel.name, channel.on, channel.signed) == ("ci", ("done", "failed"), True)
    assert [word for word, _ in options.complete_channel("c")] == ["ci"]

    assert cli("notify", "log").out == "No notifications yet; tests are not listed.\n"
    assert cli("notify", "log", "--state", "failed").out == "No notification matches.\n"
    assert cli("notify", "test", "ci").out == "Sent to ci.\n"
    task_id = client.submit(ECHO).task_id
    hand.finish(hand.take(task_id))
    until(lambda: len(receiver.taken) == 2)
    assert receiver.taken[0].json["title"] == "This is a test"
    assert "notify log" not in str(receiver.taken[0].json), "it is in no log"
    assert receiver.taken[1].json["task"]["id"] == task_id
    until(lambda: client.notifications.list(task_id=task_id, state="sent").items)
    assert "hello is complete" in cli("notify", "log", "--task", task_id[:12]).out
    (told,) = [NotificationView.model_validate(each) for each in cli("notify", "log", "--json").json]
    assert (told.state, told.tries, told.channel_id, told.channel) == ("sent", 1, channel.id, "ci")

    receiver.status = 500
    failed = cli("notify", "test", "ci")
    assert (failed.code, failed.out) == (1, "Delivery to ci failed: 127.0.0.1 returned 500.\n")
    assert cli("notify", "rm", "ci", "--yes").out == "Removed ci.\n"
    assert cli("notify", "rm", "ci", "--yes").code == 4
    assert cli("notify", "add", "x", "https://example.org", "--on", "donne").code != 0
    assert "Valid events: done" in cli("notify", "add", "x", "https://example.org", "--on", "donne").err


def test_the_log_says_which_channel_it_was(cli: Cli, client: Client, hand: HandWorker, receiver: Receiver) -> None:
    """All of them may lead to one host, and of an address no more is shown."""
    for name in ("day", "night", "gone"):
        client.notifications.create_channel(name, f"{receiver.url}/{name}", on=["done"])
    task_id = client.submit(f"{ECHO}  notify: [{{to: '{receiver.url}/own', on: [done]}}]\n").task_id
    hand.finish(hand.take(task_id))
    until(lambda: len(client.notifications.list(task_id=task_id, state="sent").items) == 4)
    client.notifications.remove_channel("gone")
    shown = [line.split() for line in cli("notify", "log", "--task", task_id).out.splitlines()]
    column = {"day", "night", "(removed)", "workflow"}
    assert sorted(word for line in shown for word in line if word in column) == sorted(column)
    for name in ("day", "night"):
        client.notifications.remove_channel(name)


def test_what_the_api_refuses(running: Running, client: Client) -> None:
    with running.client(running.admin_key) as http:
        wrong = http.post("/notifications/channels", json={"name": "x", "to": "gopher://x"})
        is_problem(wrong, 422, "input_invalid")
        is_problem(
            http.post("/notifications/channels", json={"name": "a b", "to": "https://x.org"}), 422, "request_invalid"
        )
        is_problem(http.get("/notifications/channels/none"), 404, "not_found")
        is_problem(http.get("/notifications", params={"state": "gone"}), 422, "request_invalid")
        document = ECHO + "  notify: [{to: 'https://${secret:HOOK}/x'}]\n"
        refused = is_problem(http.post("/workflows", json={"document": document}), 422, "spec_invalid")
        (fault,) = refused["faults"]
        assert fault["path"] == "spec.notify.0.to"
        assert fault["line"] > 0
        assert "tunefleet notify add" in fault["hint"]
    made = client.notifications.create_channel("sdk", "https://example.org/x", on=["done"])
    assert made.secret is not None
    changed = client.notifications.change_channel("sdk", enabled=False)
    assert (changed.enabled, changed.on) == (False, ("done",))
    client.notifications.remove_channel(made.id)
