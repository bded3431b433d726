"""The fixed verbs of a worker, through server, link and process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.worker.test_fleet import ECHO, QUIET
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.errors import ConflictError, ForbiddenError, InputError


@pytest.mark.proof
def test_a_worker_restarts_changes_its_settings_and_tells_about_itself(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    fleet = LocalFleet(tmp_path / "data", port=free_port(), environment=QUIET, save_client=False)
    with fleet, Client(fleet.url, fleet.key, patience_s=20) as client:
        assert client.submit(ECHO).wait(timeout_s=20).status == "completed"
        (worker,) = client.workers.list().items
        before = fleet.pid("worker")

        def tell(verb: str, data: dict[str, object] | None = None) -> tuple[str, str]:
            asked = client.workers.tell(worker.id, verb, data)
            done = client.workers.wait_for_command(worker.id, asked.id, timeout_s=30)
            return done.state, done.message or ""

        assert tell("restart") == ("applied", f"Restarted as process {before}.")
        assert client.submit(ECHO).wait(timeout_s=20).status == "completed"
        log = (fleet.logs / "worker.log").read_text()
        assert log.count("Registered as") == 2, "it did begin anew, in the process that its parent knows"

        assert tell("update-config", {"job_slots": 3, "tags": ["fast", "near"]})[0] == "applied"
        now = client.workers.get(worker.id).capabilities
        assert (now.slots["job"], now.tags) == (3, ("fast", "near"))
        for data, said in (
            ({}, "needs a setting"),
            ({"allow_code": True}, "cannot be changed remotely"),
            ({"job_slots": -1}, "job_slots"),
            ({"log_level": "loud"}, "not a log level"),
        ):
            state, message = tell("update-config", data)
            assert (state, said in message) == ("failed", True), message

        asked = client.workers.tell(worker.id, "collect-diagnostics")
        told = client.workers.wait_for_command(worker.id, asked.id, timeout_s=30).result
        assert told is not None
        assert (told["pid"], told["changes"]["job_slots"]) == (before, 3)
        assert any("Registered as" in line for line in told["log"])
        assert (fleet.data / "keys" / "worker.key").read_text().strip() not in json.dumps(told)

        state, message = tell("upgrade", {"version": "99.0"})
        assert state == "failed"
        assert "source tree" in message or "pip" in message
        assert tell("upgrade", {"version": "1; rm -rf /"}) == (
            "failed", "'1; rm -rf /' is not a version. Use for example 1.2.3.",
        )  # fmt: skip

        with pytest.raises(InputError, match="Unknown command 'shell'"):
            client.workers.tell(worker.id, "shell", {"line": "id"})
        member = client.keys.create("bob", "member").secret
        with Client(fleet.url, member) as other, pytest.raises(ForbiddenError):
            other.workers.tell(worker.id, "restart")
        with pytest.raises(ConflictError, match="another command"):
            client.workers.tell(worker.id, "restart", command_id=asked.id)
