"""Each variable of the document changes what the agent does."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunefleet.agent.agent import Agent
from tunefleet.agent.gpus import Gpus
from tunefleet.agent.main import agent_id
from tunefleet.agent.poller import Poller
from tunefleet.agent.translate import Defaults
from tunefleet.errors import MachineError
from tunefleet.schemas.training_protocol.training import Heartbeat, HeartbeatReply, PollReply
from tunefleet.settings import AgentSettings, load, load_agent


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_a_job_gets_where_it_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINT_INTERVAL_STEPS", "7")
    monkeypatch.setenv("METRICS_REPORT_INTERVAL_STEPS", "3")
    monkeypatch.setenv("ENABLE_MIXED_PRECISION", "false")
    monkeypatch.setenv("TUNEFLEET_ALLOW_CODE", "true")
    settings = load_agent()
    job_table: Any = SimpleNamespace(context=SimpleNamespace(gpu_monitor=None))
    found = Agent(settings, job_table, Gpus(settings, read=lambda: ())).defaults()
    expected = Defaults(
        save_steps=7, logging_steps=3, mixed_precision=False, gpu=False, bf16=found.bf16, allow_code=True
    )
    assert found == expected


@pytest.mark.parametrize(("own", "theirs", "pause_s"), [(None, 25, 25.0), ("3", 25, 3.0), (None, None, 10.0)])
def test_how_often_a_backend_is_polled(
    monkeypatch: pytest.MonkeyPatch, own: str | None, theirs: int | None, pause_s: float
) -> None:
    if own is not None:
        monkeypatch.setenv("POLL_INTERVAL_SECONDS", own)
    said = {} if theirs is None else {"poll_interval_seconds": theirs}
    client: Any = SimpleNamespace(poll=lambda wait_s, want: PollReply.model_validate(said))
    job_table = SimpleNamespace(free=lambda: 1)
    agent: Any = SimpleNamespace(settings=load_agent(), job_table=job_table, stopping=threading.Event())
    executor: Any = SimpleNamespace(take=lambda commands: None, run=None)
    poller = Poller(agent, lambda: client, executor, threading.Event())
    assert poller._poll_once(client) == pause_s


@pytest.mark.parametrize(("lease_s", "pause_s"), [(60.0, 4.0), (6.0, 2.0)])
def test_load_is_sent_as_often_as_it_says_and_within_the_lease(
    monkeypatch: pytest.MonkeyPatch, lease_s: float, pause_s: float
) -> None:
    monkeypatch.setenv("HEARTBEAT_INTERVAL_SECONDS", "4")
    monkeypatch.setattr("tunefleet.agent.poller.load", lambda agent: {"cpu_percent": 1.0})
    sent: list[Heartbeat] = []
    drop: tuple[str, ...] = ()

    def heartbeat(beat: Heartbeat) -> HeartbeatReply:
        sent.append(beat)
        return HeartbeatReply(lease_s=lease_s, drop=drop)

    client: Any = SimpleNamespace(heartbeat=heartbeat)
    job_table = SimpleNamespace(free=lambda: 1, jobs=list, drop=lambda job_id: None)
    agent: Any = SimpleNamespace(settings=load_agent(), job_table=job_table, stopping=threading.Event())
    executor: Any = SimpleNamespace(take=list, run=None, outcomes=tuple, stored=lambda sent, stored: None)
    poller = Poller(agent, lambda: client, executor, threading.Event())
    assert poller._beat(client, with_capabilities=False) is True
    assert (poller._beat_s, sent[0].load) == (pause_s, {"cpu_percent": 1.0})
    # A backend that drops jobs may have forgotten the agent: it is told again what the machine has.
    drop = ("job-1",)
    assert poller._beat(client, with_capabilities=False) is False


def test_the_agents_name_is_made_once(home: Path) -> None:
    made = agent_id(load_agent())
    assert agent_id(load_agent()) == made
    assert (home / "agent_id").read_text().strip() == made
    assert made.startswith("agent_")
    assert len(made) == 22
    (home / "agent_id").write_text("agent_x # a comment\n")
    with pytest.raises(MachineError, match="agent_id"):
        agent_id(load_agent())


def test_settings_come_from_the_environment_then_env_then_the_installed_file(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "agent.env").write_text("MAX_CONCURRENT_JOBS=2\nLOGS_DIR=installed\nBACKEND_URL=http://a/\n")
    (tmp_path / ".env").write_text("LOGS_DIR=here # a comment\nBACKEND_URL=http://b/\n")
    monkeypatch.setenv("BACKEND_URL", "http://c/")
    found = load_agent()
    assert (found.max_jobs, str(found.logs_dir), found.backend) == (2, "here", "http://c")
    monkeypatch.setenv("BACKEND_URL", "None")
    assert load_agent().backend is None
    assert load(AgentSettings, max_jobs=5).max_jobs == 5
