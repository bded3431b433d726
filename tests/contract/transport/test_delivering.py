"""Results whose receiver is down: real worker processes over every link, with room for one job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.transport.conftest import Site, over_one_link
from tests.contract.transport.workers import Workers, ask, ended, outputs, until
from tests.fakes.receiver import receiving
from tunefleet.artifacts import blobs

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300), over_one_link]
HOOK = "the-secret-of-the-hook"


def sending(document: str, port: int) -> str:
    """Return a document whose result goes to an address with a secret in it, tried again in growing pauses."""
    made = json.loads(document)
    url = f"http://127.0.0.1:{port}/${{secret:HOOK}}"
    made["spec"]["output"] = {"destination": {"type": "http", "url": url, "retries": 99, "retryBackoffSec": 0.1}}
    return json.dumps(made)


def cli(site: Site, *arguments: str) -> str:
    """Run the command line as a user does."""
    run = "from tunefleet.cli.main import main; main()"
    environment = {**os.environ, "TUNEFLEET_URL": site.url, "TUNEFLEET_KEY": site.admin_key, "COLUMNS": "400"}
    done = subprocess.run(
        [sys.executable, "-c", run, *arguments], env=environment, capture_output=True, text=True, timeout=90, check=True
    )
    return " ".join(done.stdout.split())


def test_a_delivery_that_is_held_up_says_so_and_lets_the_next_task_run(
    site: Site, workers: Workers, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    port = free_port()
    first = site.client.submit(sending(ask("one", "same"), port)).task_id
    along = site.client.submit(sending(ask("same", "two"), port)).task_id
    given = {"TUNEFLEET_URL_ALLOW": "127.0.0.1", "TUNEFLEET_JOB_SLOTS": "1", "TUNEFLEET_SECRET_HOOK": HOOK}
    workers.start("one-slot", **given)
    until(lambda: "Cannot reach" in (site.client.tasks.get(first).why or ""), "the note")
    told = str(site.client.tasks.get(first).why)
    assert told.startswith("delivering: Cannot reach http://127.0.0.1"), "the cause first"
    assert told.endswith(" answers.txt is retried.")
    assert (site.client.tasks.get(first).status, site.client.tasks.get(along).merged_into) == ("running", first)
    assert str(site.client.tasks.get(along).why).startswith("delivering: ")
    assert HOOK not in told
    for command in (("ls",), ("show", first), ("why", first)):
        assert "elivering: Cannot reach http://127.0.0.1" in cli(site, *command), command

    second = ended(site, site.client.submit(ask("three")).task_id)
    assert (second.status, outputs(second)) == ("completed", ["THREE"])
    assert second.worker_id == "one-slot"
    assert [site.client.tasks.get(each).status for each in (first, along)] == ["running", "running"]

    with receiving(port) as receiver:
        done = [ended(site, each) for each in (first, along)]
    assert [(task.status, task.why, task.attempts) for task in done] == [("completed", None, 1)] * 2
    results = [seen.json["result"]["items"][0]["output"] for seen in receiver.taken if seen.path == f"/{HOOK}"]
    assert results == ["ONE", "SAME"]
    files = {seen.path for seen in receiver.taken} - {f"/{HOOK}"}
    assert files == {f"/{HOOK}/{first}/files", f"/{HOOK}/{along}/files"}
    assert HOOK not in (tmp_path / "one-slot.log").read_text()


def test_a_full_disk_of_the_server_is_told_while_results_wait_for_it(
    site: Site, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "disk_free", lambda _: 0)  # of the server, which is a thread of this process
    task_id = site.client.submit(ask("one")).task_id
    workers.start("keeper", TUNEFLEET_JOB_SLOTS="1")
    until(lambda: "bytes free" in (site.client.tasks.get(task_id).why or ""), "the note")
    told = str(site.client.tasks.get(task_id).why)
    assert told.startswith("delivering: Not enough disk space at ")
    assert "0 bytes free" in told
    other = site.client.submit(ask("two")).task_id
    later = "Delivery of answers.txt is retried."
    until(lambda: str(site.client.tasks.get(other).why).endswith(later), "the next job's end")
    monkeypatch.undo()
    assert [ended(site, each).status for each in (task_id, other)] == ["completed"] * 2
    assert [site.client.tasks.get(each).why for each in (task_id, other)] == [None, None]
