"""Notifications: delivered in order, in spite of receivers that fail, and nowhere where they must not go."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.fakes.receiver import Receiver, receiving
from tests.fakes.smtp import FakeMailServer
from tests.integration.notify.told import channel, deliver, opened, run, verified
from tests.unit.orchestrator.lab import ECHO, FakeClock, Lab
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.notifications import channels, delivery
from tunefleet.orchestrator.notifications.delivery import GIVE_UP_S, MIN_TRIES, DeliveryLoop
from tunefleet.orchestrator.notifications.triggers import TOPIC
from tunefleet.schemas.notify import ChannelChange


async def test_nothing_is_lost_while_a_receiver_is_down_and_the_order_stays(data: Path) -> None:
    """It answers nothing, then 503, then the server is started anew, and then it takes everything, in order."""
    clock = FakeClock()
    with receiving() as receiver:
        port = receiver.port
    async with opened(data, clock) as lab:
        await channel(lab, f"http://127.0.0.1:{port}/hook")
        await channel(lab, "http://127.0.0.1:1/other", name="other")
        task_id = await lab.submit(
            ECHO.replace("taskType: echo", "taskType: echo\n  retry: {max_attempts: 3, backoff_s: 0}")
        )
        worker = await lab.online()
        for _ in range(2):
            offer = await worker.start()
            await worker.finish(offer.token, "failed", "out_of_memory")
        offer = await worker.start()
        await worker.finish(offer.token)
        told = await deliver(lab)
        here = [each for each in told if each.to.endswith(f":{port}/…")]
        assert [(each.state, each.tries) for each in here] == [("waiting", 1), ("waiting", 0), ("waiting", 0)]
        assert here[0].error is not None
        assert here[0].error.startswith("Cannot reach 127.0.0.1")
        with receiving(port) as receiver:
            receiver.status = 503
            await deliver(lab)
            assert receiver.seen == [], "it is not due yet"
            clock.advance(6.0)
            told = await deliver(lab)
            assert len(receiver.seen) == 1
            assert "127.0.0.1 returned 503." in {each.error for each in told}
    async with opened(data, clock) as lab:
        clock.advance(60.0)
        with receiving(port) as receiver:
            told = await deliver(lab)
            assert receiver.events == ["out_of_memory", "out_of_memory", "done"]
            assert {seen.json["task"]["id"] for seen in receiver.taken} == {task_id}
        here = [each for each in told if each.to.endswith(f":{port}/…")]
        assert [(each.state, each.tries) for each in here] == [("sent", 3), ("sent", 1), ("sent", 1)]
        assert here[0].id == receiver.taken[0].json["id"]


async def test_a_receiver_that_is_gone_for_a_day_is_given_up(lab: Lab, receiver: Receiver) -> None:
    await channel(lab, receiver.url)
    await run(lab)
    receiver.status, receiver.headers = 429, {"Retry-After": "120"}
    (told,) = await deliver(lab)
    assert told.next_try_at is not None
    assert told.next_try_at.timestamp() == pytest.approx(lab.clock.wall + 120.0)
    receiver.headers = {}
    lab.clock.advance(GIVE_UP_S)
    for tries in range(2, MIN_TRIES + 1):
        (told,) = await deliver(lab)
        assert told.tries == tries
        lab.clock.advance(1000.0)
    assert (told.state, told.error) == ("failed", "127.0.0.1 returned 429.")
    await deliver(lab)
    assert len(receiver.seen) == MIN_TRIES, "it is left alone"


async def test_a_refusal_is_final_and_holds_up_nothing(lab: Lab, receiver: Receiver) -> None:
    await channel(lab, receiver.url)
    await run(lab)
    receiver.status = 410
    (told,) = await deliver(lab)
    assert (told.state, told.error, told.next_try_at) == ("failed", "127.0.0.1 returned 410.", None)


@pytest.mark.parametrize(
    ("to", "location", "said"),
    [
        ("{url}", "http://169.254.169.254/latest/meta-data/", "a cloud metadata service; access is never allowed."),
        ("{url}", "http://10.0.0.7/", "10.0.0.7 is not a public address."),
        ("{url}", "file:///etc/passwd", "is not an HTTP or HTTPS URL"),
        ("{url}", "{url}/again", "has too many redirects"),
        ("http://169.254.169.254/", None, "access is never allowed"),
        ("http://[::ffff:169.254.169.254]/", None, "access is never allowed"),
        ("http://192.168.1.1/", None, "192.168.1.1 is not a public address."),
    ],
)
async def test_private_and_metadata_addresses_are_not_reached(
    lab: Lab, receiver: Receiver, to: str, location: str | None, said: str
) -> None:
    """Only 127.0.0.1 is on the list; a redirect is checked like the address itself."""
    await channel(lab, to.format(url=receiver.url))
    if location is not None:
        receiver.status, receiver.headers = 307, {"Location": location.format(url=receiver.url)}
    reply = await channels.test(lab.core, lab.admin, "team")
    assert not reply.sent
    assert reply.error is not None
    assert said in reply.error
    assert ("TUNEFLEET_URL_ALLOW" in reply.error) == ("public address" in reply.error), "nothing opens metadata"
    assert len(receiver.seen) == (0 if location is None else 4 if "again" in location else 1)


async def test_metadata_is_denied_even_if_its_network_is_allowed(data: Path) -> None:
    async with opened(data, FakeClock(), url_allow=("169.254.0.0/16", "127.0.0.1")) as lab:
        await channel(lab, "http://169.254.169.254/latest")
        assert not (await channels.test(lab.core, lab.admin, "team")).sent


async def test_a_redirect_that_keeps_the_message_is_followed(lab: Lab, receiver: Receiver) -> None:
    with receiving() as second:
        receiver.status, receiver.headers = 308, {"Location": f"{second.url}/new"}
        await channel(lab, receiver.url)
        assert (await channels.test(lab.core, lab.admin, "team")).sent
        assert [seen.path for seen in second.taken] == ["/new"]
        receiver.status = 302
        assert (await channels.test(lab.core, lab.admin, "team")).error == "127.0.0.1 returned 302."


async def test_slack_and_discord_get_their_own_words_and_nobody_is_mentioned(lab: Lab, receiver: Receiver) -> None:
    await channel(lab, f"{receiver.url}/slack", name="slack", format="slack")
    await channel(lab, f"{receiver.url}/discord", name="discord", format="discord")
    await run(
        lab, ECHO.replace("hello", "a-b_c"), outcome="failed", reason="bad_input", error="<!channel> & *@everyone*"
    )
    await deliver(lab)
    by_path = {seen.path: seen for seen in receiver.taken}
    slack, discord = by_path["/slack"].json, by_path["/discord"].json
    assert slack["text"].startswith("*a-b_c failed*\n")
    assert "&lt;!channel&gt; &amp;" in slack["text"]
    assert "|open>" in slack["text"]
    assert discord["content"].startswith("**a-b\\_c failed**\n")
    assert "\\*@everyone\\*" in discord["content"]
    assert discord["allowed_mentions"] == {"parse": []}
    assert not [name for seen in receiver.taken for name in seen.headers if name.startswith("webhook-")]
    long = ECHO.replace("hello", "x")
    await run(lab, long, outcome="failed", reason="bug_", error="word " * 2000)
    await deliver(lab)
    assert all(len(seen.json["content"]) <= 2000 for seen in receiver.taken if seen.path == "/discord")


async def test_mail_is_sent_again_with_the_same_id(lab: Lab, mail: FakeMailServer) -> None:
    mail.password = "pass@word"
    await channel(lab, "mailto:ada@example.org", name="me")
    task_id = await run(lab)
    mail.refuse = ["450 later"]
    (told,) = await deliver(lab)
    assert (told.state, told.error) == ("waiting", "The mail server 127.0.0.1 returned 450: later.")
    lab.clock.advance(6.0)
    (told,) = await deliver(lab)
    assert told.state == "sent"
    (message,) = mail.messages
    assert mail.recipients == ["ada@example.org"]
    assert mail.logins == ["pass@word"] * 2
    assert message["Subject"] == "[tunefleet] hello is complete"
    assert message["From"] == "Fleet <fleet@example.org>"
    assert message["Message-ID"] == f"<{told.id}@example.org>"
    assert f"Details: tunefleet show {task_id}" in message.get_content()

    mail.refuse = ["550 no such user"]
    reply = await channels.test(lab.core, lab.admin, "me")
    assert reply.error == "The mail server 127.0.0.1 returned 550: no such user."
    mail.password = "changed"
    reply = await channels.test(lab.core, lab.admin, "me")
    assert reply.error is not None
    assert "535" in reply.error
    assert "pass" not in reply.error


async def test_no_view_shows_a_secret_and_what_waits_goes_to_a_new_address(lab: Lab, receiver: Receiver) -> None:
    hidden = "T000/B000/hush"
    secret = await channel(lab, f"http://user:hush@127.0.0.1:1/services/{hidden}")
    await run(lab)
    await deliver(lab)
    shown = [each.model_dump_json() for each in await channels.list_(lab.core, lab.admin)]
    shown += [each.model_dump_json() for each in (await delivery.list_notifications(lab.core, lab.admin)).items]
    assert secret is not None
    assert not [text for text in shown if "hush" in text or secret in text]
    assert '"to":"http://127.0.0.1:1/…"' in shown[0]

    changed = await channels.change(lab.core, lab.admin, "team", ChannelChange(to=f"{receiver.url}/new"))
    assert changed.signed
    (told,) = await deliver(lab)
    assert told.state == "sent"
    assert verified(receiver.taken[0], secret, lab.clock.wall)


async def test_a_removed_channel_gets_nothing_more(lab: Lab, receiver: Receiver) -> None:
    await channel(lab, receiver.url)
    receiver.status = 503
    await run(lab)
    await deliver(lab)
    await channels.remove(lab.core, lab.admin, "team")
    receiver.status = 200
    lab.clock.advance(60.0)
    (told,) = await deliver(lab)
    assert (told.state, told.error) == ("failed", "The channel was removed.")
    assert receiver.taken == []


async def test_the_loop_wakes_when_something_is_to_be_told(lab: Lab, receiver: Receiver) -> None:
    await channel(lab, receiver.url)
    courier = DeliveryLoop(lab.core)
    loop = asyncio.create_task(_again(courier, lab.core))
    try:
        await run(lab)
        async with asyncio.timeout(60):
            while not receiver.taken:
                await lab.core.signals.wait(TOPIC, 0.1)
    finally:
        lab.core.signals.close()
        await loop
        await courier.close()
    assert json.loads(receiver.taken[0].body)["event"] == "done"


async def _again(courier: DeliveryLoop, core: ServerContext) -> None:
    while not core.signals.closed:
        await courier.run_once()
