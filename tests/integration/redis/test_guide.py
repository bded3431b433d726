"""A worker with the guide's three variables, and what `redis-cli` shows of it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from tests.integration.redis.process import RedisProcess
from tests.integration.redis.site import Site, until
from tests.unit.transport.test_redis_diary import METRICS, SUMMARY

pytestmark = pytest.mark.proof


def _events(client: Any, stream: str, worker_id: str) -> list[dict[str, str]]:
    return [entry for _, entry in client.xrange(stream) if entry.get("worker_id") == worker_id]


def _kinds(entries: list[dict[str, str]]) -> list[str]:
    return [entry["type"] for entry in entries if not entry["type"].startswith("LINK_")]


@pytest.mark.story
def test_three_variables_and_no_key_start_a_worker_that_redis_cli_shows(
    site: Callable[..., Site], redis_server: Callable[..., RedisProcess]
) -> None:
    redis = redis_server()
    here = site(redis)
    more = {"HEARTBEAT_INTERVAL_SEC": "1", "WORKER_TAGS": "lab,a100", "WORKER_COST_PER_HOUR": "2.5"}
    worker = here.worker("guide-1", **more)
    task_id = here.submit()
    until(lambda: here.completed(task_id), "the task's end")
    with redis.client as client:
        assert client.smembers("workers:ids") == {"guide-1"}
        assert 100 < client.ttl("worker:guide-1:hb") <= 120
        assert datetime.fromisoformat(client.get("worker:guide-1:hb")).tzinfo is not None
        told = client.hgetall("worker:guide-1")
        wanted = {
            "worker_id", "status", "started_at", "pid", "env_json", "hardware_json", "tags_json", "last_seen",
            "cost_per_hour", "cache_models_json", "cache_datasets_json", "cache_updated_ts",
        }  # fmt: skip
        assert wanted <= told.keys()
        assert (told["worker_id"], told["pid"], told["cost_per_hour"]) == ("guide-1", str(worker.pid), "2.5")
        assert json.loads(told["tags_json"]) == ["lab", "a100"]
        hardware = json.loads(told["hardware_json"])
        assert hardware["cpu"]["logical_cores"] >= 1
        assert hardware["memory"]["total_bytes"] > 0
        assert {"driver_version", "cuda_version", "gpus"} <= hardware["gpu"].keys()
        assert hardware["network"]["ip"] == "127.0.0.1"
        until(lambda: client.hget("worker:guide-1", "status") == "IDLE", "the status IDLE")
        assert client.hget("worker:guide-1", "extra_last_task") == task_id
        tasks = _events(client, "tasks.events", "guide-1")
        assert _kinds(tasks) == ["TASK_STARTED", "TASK_SUCCEEDED"]
        started, succeeded = (json.loads(entry["payload"]) for entry in tasks if entry["type"].startswith("TASK_"))
        assert {"taskType", "dispatched_at", "started_at"} <= started.keys()
        assert {"taskType", "runtime_sec", "started_at", "finished_at", "dispatched_at"} <= succeeded.keys()
        assert {entry["task_id"] for entry in tasks if "task_id" in entry} == {task_id}
        until(lambda: _kinds(_events(client, "workers.events", "guide-1")).count("HEARTBEAT") >= 2, "two heartbeats")
        beats = [e for e in _events(client, "workers.events", "guide-1") if e["type"] == "HEARTBEAT"]
        metrics = json.loads(beats[-1]["metrics"])
        assert metrics.keys() == METRICS
        assert metrics["power_summary"].keys() == SUMMARY
        assert metrics["loadavg"].keys() == {"1m", "5m", "15m"}
        worker.send_signal(signal.SIGTERM)
        _, said = worker.communicate(timeout=60)
        assert worker.returncode == 0, said
        kinds = _kinds(_events(client, "workers.events", "guide-1"))
        assert (kinds[0], kinds[-1]) == ("REGISTER", "UNREGISTER")
        assert {"STATUS", "HEARTBEAT"} <= set(kinds)
        assert client.smembers("workers:ids") == set()
        assert client.ttl("worker:guide-1:hb") < 0
        # What was dealt with is gone, tokens above all; only the exchange may be left that the worker was held in.
        assert [entry["type"] for _, entry in client.xrange("tasks:guide-1") if entry["type"] == "TASK"] == []
        held = [entry for _, entry in client.xrange("tasks.events") if entry["type"] == "LINK_EXCHANGE"]
        assert len(held) <= 2
    log = (here.folder / "results-guide-1" / "worker.log").read_text()
    assert "Registered as guide-1." in log
    assert f"Task {task_id} (echo) ended after" in log
    assert "Registered as guide-1." in said, "the log is on standard error too"


def test_prefix_and_topic_keep_two_fleets_in_one_redis_apart(
    site: Callable[..., Site], redis_server: Callable[..., RedisProcess]
) -> None:
    redis = redis_server()
    names = {"left": {"topic": "left"}, "right": {"topic": "right", "redis_prefix": "r:"}}
    for name, settings in names.items():
        here = site(redis, **settings)
        prefix = settings.get("redis_prefix", "")
        here.worker(name, TASK_TOPIC=settings["topic"], TUNEFLEET_REDIS_PREFIX=prefix)
        task_id = here.submit()
        until(lambda here=here, task_id=task_id: here.completed(task_id), "the task's end")
        assert [worker.id for worker in here.client.workers.list().items] == [name]
    with redis.client as client:
        assert client.smembers("workers:ids") == {"left"}
        assert client.smembers("r:workers:ids") == {"right"}
        assert not [key for key in client.keys("*") if "right" in key and not key.startswith("r:")]


def test_a_variable_without_effect_is_said_at_start(
    site: Callable[..., Site], redis_server: Callable[..., RedisProcess]
) -> None:
    here = site(redis_server())
    worker = here.worker("w", WORKER_EXECUTOR_MASK="echo", LOG_FILE=str(here.folder / "own.log"))
    until(lambda: here.online("w"), "the registration")
    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate(timeout=60)
    assert "WORKER_EXECUTOR_MASK is not supported" in said
    assert "Registered as w." in (here.folder / "own.log").read_text()


WITH_A_FILE = """apiVersion: tunefleet/v1
kind: Task
metadata: {name: rows}
spec:
  taskType: data
  sources: [{path: rows.jsonl}]
"""


def with_a_file(here: Site) -> str:
    """Submit a task that needs a file of the server; returns its id."""
    (here.folder / "rows.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    (here.folder / "task.yaml").write_text(WITH_A_FILE)
    return here.client.submit(here.folder / "task.yaml").task_id


@pytest.mark.story
def test_a_worker_that_only_knows_redis_hears_there_where_files_are(
    site: Callable[..., Site], redis_server: Callable[..., RedisProcess]
) -> None:
    here = site(redis_server())
    worker = here.worker("told", ORCHESTRATOR_BASE_URL="", TUNEFLEET_JOB_SLOTS="1")
    task_id = with_a_file(here)
    until(lambda: here.completed(task_id), "the task's end")
    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate(timeout=60)
    assert f"Using server URL {here.url} from Redis." in said


def test_a_worker_waits_for_a_server_that_has_not_said_where_it_is(
    site: Callable[..., Site], redis_server: Callable[..., RedisProcess]
) -> None:
    redis = redis_server()
    here = site(redis)
    here.stop()
    with redis.client as client:
        client.flushall()
    worker = here.worker("early", ORCHESTRATOR_BASE_URL="")
    assert worker.stderr is not None
    line = next(line for line in worker.stderr if "Waiting for the server's address" in line)
    assert "No server has published its URL in Redis. Or set TUNEFLEET_SERVER_URL." in line
    here.start()
    until(lambda: here.online("early"), "the registration")


@pytest.mark.story
def test_a_worker_that_does_not_reach_the_files_takes_no_task_that_needs_them(
    site: Callable[..., Site], redis_server: Callable[..., RedisProcess]
) -> None:
    here = site(redis_server())
    here.worker("lost", ORCHESTRATOR_BASE_URL="http://127.0.0.1:9", TUNEFLEET_JOB_SLOTS="1")
    until(lambda: here.online("lost"), "the registration")
    light = here.submit()
    until(lambda: here.completed(light), "a task without files")
    task_id = with_a_file(here)
    why = until(lambda: here.client.tasks.get(task_id).why, "a reason")
    assert "the server does not respond at http://127.0.0.1:9" in why
    assert "set TUNEFLEET_SERVER_URL on the worker" in why
    assert here.status(task_id) == "queued"
