"""Freeze the data folder of a version, for `test_upgrades.py`; README.md beside this says when and how.

    PYTHONPATH=TREE/src .venv/bin/python tests/upgrade/freeze.py NAME

runs a server and a worker of that tree, lets them do a little of everything, and writes `NAME.tar.xz`, the data folder
after both have ended, and `NAME.json`, what the server said of it. What the first version
had not is tried where the server has it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from tunefleet.cli.fleet import LocalFleet

HERE = Path(__file__).resolve().parent
PATIENCE_S = 300
TRAINING = """
apiVersion: tunefleet/v1
metadata: {name: trained}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {path: ./rows.jsonl, prompt_column: question, response_column: answer}
  lora: {r: 1, alpha: 2, target_modules: [q_proj]}
  training: {max_steps: 3, batch_size: 1, logging_steps: 1, max_seq_length: 64, save_total_limit: 1}
"""
ECHO = """
apiVersion: tunefleet/v1
metadata: {name: %s}
spec: {taskType: echo, data: {type: list, items: [%s]}, %s}
"""
NOBODY = "resources: {tags: [later]}"
ROWS = "".join(json.dumps({"question": f"What is {n} and {n}?", "answer": str(2 * n)}) + "\n" for n in range(8))
ENDS = {"COMPLETED", "FAILED", "CANCELLED", "DONE"}
QUIET = {"TUNEFLEET_WARM_START": "false", "WORKER_ID": "first-worker", "LOG_FILE": "", "OMP_NUM_THREADS": "1"}


class Old:
    """The server of that version, asked by plain HTTP."""

    def __init__(self, url: str, key: str) -> None:
        self._http = httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {key}"}, timeout=60)

    def ask(self, method: str, path: str, **more: Any) -> Any:
        """Return what a route answers, as JSON."""
        answer = self._http.request(method, path, **more)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def knows(self, path: str) -> bool:
        """Whether the server has that route."""
        return self._http.get(path).status_code != 404

    def submit(self, document: str) -> str:
        """Submit a document with one task; return the task's id."""
        made = self.ask("POST", "/workflows", content=document, headers={"Content-Type": "application/yaml"})
        workflow = made.get("workflow", made)
        return next(task["id"] for task in self.tasks() if task["workflow_id"] == workflow["id"])

    def tasks(self) -> list[dict[str, Any]]:
        """All tasks."""
        return list(self.ask("GET", "/tasks", params={"limit": 100})["items"])

    def ended(self, *names: str) -> None:
        """Wait until tasks are final."""
        deadline = time.monotonic() + PATIENCE_S
        while waiting := [t for t in self.tasks() if t["name"] in names and t["status"].upper() not in ENDS]:
            if time.monotonic() > deadline:
                raise SystemExit(f"These did not end: {waiting}")
            time.sleep(0.2)

    def told(self, task: dict[str, Any]) -> dict[str, Any]:
        """All that is said of a task: itself, its points, its log, its artifacts with the digests of their files."""
        path = f"/tasks/{task['id']}"
        artifacts = self.ask("GET", f"{path}/artifacts")["items"]
        files = {}
        for artifact in artifacts:
            whole = self.ask("GET", f"/artifacts/{artifact['id']}")
            files[artifact["name"]] = {file["path"]: self.digest(whole, file) for file in whole["files"]}
        log = self._http.get(f"{path}/log")
        told = {"task": self.ask("GET", path), "metrics": self.ask("GET", f"{path}/metrics"), "artifacts": files}
        return told | {"log_sha256": hashlib.sha256(log.content).hexdigest()}

    def digest(self, artifact: dict[str, Any], file: dict[str, Any]) -> str:
        """Fetch a file; return its digest."""
        content = self._http.get(f"/artifacts/{artifact['id']}/files/{file['path']}").raise_for_status().content
        return hashlib.sha256(content).hexdigest()


def of_newer_versions(old: Old) -> dict[str, Any]:
    """What the first version had not: a project with a key of its own, and somebody who is told."""
    old.ask("POST", "/projects", json={"name": "lab", "weight": 2.0, "max_running": 3})
    key = old.ask("POST", "/keys", json={"name": "lab-key", "role": "member", "project": "lab"})
    old.ask("POST", "/notifications/channels", json={"name": "phone", "to": "https://example.org/hook"})
    return {"project": old.ask("GET", "/projects/lab"), "project_key": key["secret"]}


def work(old: Old, url: str, folder: Path) -> dict[str, Any]:
    """Let the fleet do a little of everything; return what the server says of it at the end."""
    keys = {role: old.ask("POST", "/keys", json={"name": f"{role}-key", "role": role}) for role in ("member", "viewer")}
    keys["revoked"] = old.ask("POST", "/keys", json={"name": "left", "role": "member"})
    old.ask("DELETE", f"/keys/{keys['revoked']['id']}")
    (folder / "rows.jsonl").write_text(ROWS, encoding="utf-8")
    (folder / "trained.yaml").write_text(TRAINING, encoding="utf-8")
    member = os.environ | {"TUNEFLEET_URL": url, "TUNEFLEET_KEY": keys["member"]["secret"]}
    for words in (["submit", "trained.yaml"], ["data", "push", "rows.jsonl", "--name", "rows"]):
        subprocess.run([Path(sys.executable).with_name("tunefleet"), *words], cwd=folder, env=member, check=True)
    old.submit(ECHO % ("answered", "hello, fleet", ""))
    waiting, unwanted = (old.submit(ECHO % (name, name, NOBODY)) for name in ("waiting", "unwanted"))
    old.ask("POST", f"/tasks/{unwanted}/cancel")
    old.ended("answered", "trained", "unwanted")
    newer = of_newer_versions(old) if old.knows("/projects") else {}
    return newer | {
        "waiting": waiting,
        "keys": {role: key["secret"] for role, key in keys.items()},
        "tasks": [old.told(task) for task in old.tasks()],
        "workflows": old.ask("GET", "/workflows")["items"],
        "artifacts": old.ask("GET", "/artifacts")["items"],
        "events": len(old.ask("GET", "/events", params={"limit": 1000})),
    }


def pack(data: Path, name: str) -> None:
    """Write the archive: what a server needs, without logs and the worker's results."""
    left_out = {"logs", "results", "up.lock", "up.json"}
    with tarfile.open(HERE / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        for path in sorted(data.iterdir()):
            if path.name not in left_out:
                archive.add(path, path.name)


def main(name: str) -> None:
    """Freeze the version that is imported here."""
    with tempfile.TemporaryDirectory(prefix="freeze-") as folder:
        os.environ["TUNEFLEET_HOME"] = str(Path(folder, "home"))
        data = Path(folder, "data")
        with LocalFleet(data, port=18471, environment=QUIET, save_client=False) as fleet:
            told = work(Old(fleet.url, fleet.key), fleet.url, Path(folder)) | {"admin": fleet.key}
        pack(data, name)
    (HERE / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
