"""A real Ray of the test's own: a head and a second node on this machine, with a token, on addresses of loopback."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx

ROOT: Final = Path(__file__).parents[3]
PYTHON: Final = ROOT / ".venv-ray" / "bin" / "python"
HEAD: Final = "127.0.0.2"
SECOND: Final = "127.0.0.3"
"""Each node has an address of its own. Not 127.0.0.1: Ray would look for the head at the machine's other address."""
_READY_S: Final = 90.0
_STOP_S: Final = 15.0
_STORE_BYTES: Final = 80_000_000


class RayCluster:
    """Started once for the tests of a folder, which submit to it.

    Args:
        folder: For its sockets, logs and token; its path is short, for a socket's may have 107 characters.
        free_port: Finds ports.
        autoscaled: Whether the head has no core, and Ray's autoscaler starts nodes of one core on this machine.
    """

    def __init__(self, folder: Path, free_port: Callable[[], int], *, autoscaled: bool = False) -> None:
        self.folder = folder
        self.token = secrets.token_hex(16)
        self._port = free_port
        self._gcs, self._dashboard = free_port(), free_port()
        self._autoscaled = autoscaled
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "token").write_text(self.token)
        self._environment = {
            **os.environ,
            # Ray's own search for a token ends in the user's home, where it may make one.
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
            "RAY_TMPDIR": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_health_check_initial_delay_ms": "1000",
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_failure_threshold": "3",
            "PYTHONPATH": str(ROOT / "src"),
            "HOME": str(folder),
            "RAY_FAKE_CLUSTER": "1",
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        }

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._dashboard}"

    def start(self) -> RayCluster:
        scaling = self.folder / "autoscaling.json"
        scaling.write_text(json.dumps(_autoscaling(f"{HEAD}:{self._gcs}")))
        self._run(
            HEAD,
            *(("--num-cpus=0", f"--autoscaling-config={scaling}") if self._autoscaled else ("--num-cpus=1",)),
            "--head",
            f"--port={self._gcs}",
            "--dashboard-host=127.0.0.1",
            f"--dashboard-port={self._dashboard}",
            f"--ray-client-server-port={self._port()}",
        )
        self._wait(lambda: self._said("/api/version"), "the dashboard does not respond")
        if not self._autoscaled:
            self.join()
        return self

    def join(self) -> None:
        """Start the second node; Ray believes it that it has a GPU."""
        self._run(SECOND, "--num-cpus=1", "--num-gpus=1", f"--address={HEAD}:{self._gcs}")
        self._wait(lambda: len(self.alive()) == 2, "the second node does not join")

    def lose(self) -> None:
        """Kill the second node's raylet: to Ray the machine is gone, while what it had started goes on."""
        group = self._nodes[SECOND].pid
        for pid in _members(group):
            if b"raylet_socket_name" in _command(pid).split(b"\0", 2)[1]:
                os.kill(pid, signal.SIGKILL)
        self._nodes.pop(SECOND).wait(_STOP_S)
        self._wait(lambda: len(self.alive()) == 1, "Ray does not notice that a node is gone")

    def alive(self) -> list[str]:
        """Return the names of the nodes that are there."""
        nodes = self._listed("nodes")
        return [node["node_name"] for node in nodes if node["state"] == "ALIVE"]

    def held(self) -> list[str]:
        """Return the placement groups that hold something, or wait for it."""
        groups = self._listed("placement_groups")
        return [group["placement_group_id"] for group in groups if group["state"] != "REMOVED"]

    def ask(self, path: str) -> httpx.Response:
        """Ask the dashboard."""
        return httpx.get(
            f"{self.address}{path}", headers={"Authorization": f"Bearer {self.token}"}, timeout=20, trust_env=False
        )

    def stop(self) -> None:
        for process in self._nodes.values():
            process.terminate()
        for process in self._nodes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _run(self, host: str, *options: str) -> None:
        command = (
            *(str(PYTHON.parent / "ray"), "start", "--block", "--disable-usage-stats"),
            *(f"--node-ip-address={host}", f"--object-store-memory={_STORE_BYTES}"),
            *("--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={self._port()}"),
            *options,
        )
        with (self.folder / f"{host}.out").open("ab") as output:
            self._nodes[host] = subprocess.Popen(
                command, env=self._environment, stdout=output, stderr=output, cwd=self.folder, start_new_session=True
            )

    def _listed(self, what: str) -> list[dict[str, Any]]:
        answer = self.ask(f"/api/v0/{what}?limit=1000")
        return list(answer.json()["data"]["result"]["result"]) if answer.is_success else []

    def _said(self, path: str) -> bool:
        try:
            return self.ask(path).is_success
        except httpx.TransportError:
            return False

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _READY_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: see the logs in {self.folder}"
            assert all(node.poll() is None for node in self._nodes.values()), f"a node ended: see {self.folder}"
            time.sleep(0.2)


def _autoscaling(address: str) -> dict[str, Any]:
    """Ray's own provider for tests: its machines are raylets on this one."""
    return {
        "cluster_name": "test",
        "max_workers": 2,
        "upscaling_speed": 10.0,
        "idle_timeout_minutes": 5.0,
        "provider": {
            "type": "fake_multinode",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "gcs_address": address,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "one-core": {
                "resources": {"CPU": 1, "object_store_memory": _STORE_BYTES},
                "node_config": {},
                "min_workers": 0,
                "max_workers": 2,
            },
        },
        "head_node_type": "ray.head.default",
        "auth": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        **{
            f"{each}_commands": []
            for each in ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
        },
    }


def _members(group: int) -> list[int]:
    """The processes that a node has started are in its group."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if os.getpgid(int(entry.name)) == group:
                found.append(int(entry.name))
    return found


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes() + b"\0\0"
