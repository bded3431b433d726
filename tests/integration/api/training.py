"""What the tests of the training-agent routes share: a client without prefix, and an agent that does nothing itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from tests.integration.api.support import Running, submit

TRAINING = """apiVersion: tunefleet/v1
metadata: {name: train-%s}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {path: "builtin:gsm8k", max_samples: 8}
  training: {max_steps: 4, batch_size: 2, learning_rate: 0.0001}
%s
"""


_open: list[httpx.Client] = []


def client(running: Running, key: str, **headers: str) -> httpx.Client:
    """Return a client of the training-agent routes; `close_clients` closes it."""
    made = httpx.Client(
        base_url=f"{running.url}/api/training",
        headers={"Authorization": f"Bearer {key}", **headers},
        timeout=20,
    )
    _open.append(made)
    return made


def close_clients() -> None:
    """Close the clients that a test made."""
    while _open:
        _open.pop().close()


def train(v1: httpx.Client, name: str = "a", more: str = "") -> str:
    """Submit a training; returns the task's id."""
    return submit(v1, TRAINING % (name, more))


def register(person: httpx.Client, job_id: str, **more: Any) -> str:
    """Register a job; returns its token."""
    reply = person.post("/local/jobs", json={"job_id": job_id, "model_name": "org/model", **more})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["job_token"])


CAPABILITIES: dict[str, Any] = {
    "version": "0",
    "hostname": "lab",
    "executors": [{"kind": "sft"}, {"kind": "lora_sft"}],
    "slots": {"job": 4},
    "cpu_count": 4,
    "memory_total_bytes": 8 << 30,
    "memory_free_bytes": 8 << 30,
    "disk_free_bytes": 8 << 30,
}


@dataclass
class HandAgent:
    """An agent that does nothing by itself; it speaks our extensions once it has beaten."""

    running: Running
    http: httpx.Client

    def poll(self, wait_s: float = 0.0, want: int = 1) -> dict[str, Any]:
        reply = self.http.get("/agent/poll", headers={"X-Poll-Wait": str(wait_s), "X-Agent-Want": str(want)})
        assert reply.status_code == 200, reply.text
        body: dict[str, Any] = reply.json()
        return body

    def claim(self, job_id: str) -> httpx.Response:
        return self.http.post(f"/agent/claim/{job_id}")

    def take(self, job_id: str) -> httpx.Client:
        """Claim a job; returns a client that reports for it."""
        reply = self.claim(job_id)
        assert reply.status_code == 200, reply.text
        return client(self.running, reply.json()["job_token"])

    def beat(self, *holding: str, capabilities: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        body = {"holding": holding, **more, **({"capabilities": capabilities} if capabilities else {})}
        reply = self.http.post("/agent/heartbeat", json=body)
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer


def agent(running: Running, key: str, name: str, *, leased: bool = True) -> HandAgent:
    """Return an agent; one that is not leased speaks the document's calls only."""
    made = HandAgent(running, client(running, key, **{"X-Agent-ID": f"agent_{name:0>16}"}))
    if leased:
        made.beat(capabilities=CAPABILITIES)
    return made
