"""Another user of the machine reads nothing that a server, worker, agent or script has written, whatever the umask.

Folders that were there before keep their mode, so each of these also works in one that everybody may look into.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.story import until
from tests.integration.agent.conftest import AgentProcess, request, write_rows
from tests.integration.worker.receiver import receiving
from tests.libraries import required
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.client.external.download import Downloader

TRAIN = """apiVersion: tunefleet/v1
metadata: {{name: private}}
spec:
  taskType: lora_sft
  model: {{source: {{identifier: "builtin:gsm8k-llama-2m"}}}}
  data: {{artifact: {dataset}}}
  lora: {{r: 2}}
  training: {{max_steps: 2, batch_size: 1, save_steps: 1, max_seq_length: 64}}
"""
ECHO = """apiVersion: tunefleet/v1
metadata: {name: echo}
spec: {taskType: echo, data: {type: list, items: [private]}}
"""
SCRIPT = """
import tunefleet

with tunefleet.control("script") as control:
    control.step(1, {"loss": 1.0})
print("private")
"""
PIDS = {"lock", "lock.pid", "tunefleet.db.lock", "tunefleet.db.lock.pid", "up.json", "up.lock"}
"""What a data folder has of process ids, which every user of the machine sees anyway."""
CALLBACK = """
from tunefleet.trainer_control.standalone import StandaloneJob, StandaloneOptions

StandaloneJob.open(StandaloneOptions("script", journal=True)).begin(0, None)
"""
"""What `TrainerControlCallback("script", journal=True)` does, without a trainer."""
INTO = 'import os\nos.makedirs("tunefleet-runs/script", mode=0o755)\n' + CALLBACK.replace(
    "journal=True", 'journal="tunefleet-runs/script"'
)
"""The same with `journal=FOLDER`, which is there and keeps its permissions."""


def exposed(root: Path) -> list[str]:
    """Return the files below a folder that another user can read; the folder itself stops him if it is private."""

    def is_open(path: Path) -> bool:
        return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)

    found = []
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink() and is_open(path):
            folders = [parent for parent in path.parents if parent == root or parent.is_relative_to(root)]
            if all(is_open(folder) for folder in folders):
                found.append(path.relative_to(root).as_posix())
    return found


def test_what_others_can_read_is_found(tmp_path: Path) -> None:
    for name, folder_mode, mode in (("a/open", 0o755, 0o644), ("b/shut", 0o755, 0o600), ("c/open", 0o700, 0o644)):
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True)
        file.touch()
        file.chmod(mode)
        file.parent.chmod(folder_mode)
    (tmp_path / "root").chmod(0o755)
    assert exposed(tmp_path / "root") == ["a/open"]
    (tmp_path / "root").chmod(0o700)
    assert exposed(tmp_path / "root") == []


@pytest.fixture(params=[0o000, 0o022], ids=["umask 000", "umask 022"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture(params=[True, False], ids=["there before", "new"])
def there(request: pytest.FixtureRequest, umask: int) -> Callable[[Path], Path]:
    """Make a folder that everybody may look into, or leave it to who uses it."""

    def there(folder: Path) -> Path:
        if request.param:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)
        return folder

    return there


def looked_for(root: Path, *names: str) -> None:
    """Check that what is to be private is there."""
    lacking = [name for name in names if not list(root.glob(name))]
    assert lacking == [], sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


@pytest.mark.proof
@pytest.mark.torch
@pytest.mark.timeout(300)
def test_the_folders_of_a_server_and_its_worker(
    tmp_path: Path, free_port: Callable[[], int], there: Callable[[Path], Path]
) -> None:
    required("trl")
    data = there(tmp_path / "data")
    results = there(tmp_path / "data/results")
    write_rows(tmp_path / "mine")
    with LocalFleet(data, port=free_port(), environment={"OMP_NUM_THREADS": "1"}, save_client=False) as fleet:
        fleet.await_workers(60)
        with Client(fleet.url, fleet.key) as client:
            pushed = client.data.push(tmp_path / "mine/rows.jsonl", name="rows").name
            for text in (TRAIN.format(dataset=pushed), ECHO):
                task_id = client.submit(text).task_id
                until(lambda id_=task_id: client.tasks.get(id_).status == "completed", "it is done", within_s=120)
        looked_for(results, "*/train.log", "*/journal/*", "*/status.json", "*/final_lora/*", "*/responses.json")
        looked_for(data, "tunefleet.db", "artifacts/**/*", "logs/*.log")
        assert (exposed(results), [name for name in exposed(data) if name not in PIDS]) == ([], [])


@pytest.mark.proof
@pytest.mark.torch
@pytest.mark.timeout(300)
def test_the_folders_of_an_agent(tmp_path: Path, free_port: Callable[[], int], there: Callable[[Path], Path]) -> None:
    required("trl")
    folder = tmp_path / "agent"
    folder.mkdir()
    roots = [there(folder / name) for name in ("checkpoints", "logs", "home")]
    write_rows(folder / "datasets")
    agent = AgentProcess(folder, {"TUNEFLEET_HOME": str(folder / "home")}, free_port())
    agent.start()
    try:
        reply = agent.post("/api/training/execute", request("private", max_steps=2))
        assert reply.status_code == 200, reply.text
        agent.until_status("private", "completed", timeout_s=120)
    finally:
        agent.clean()
    looked_for(roots[0], "private/train.log", "private/journal/*", "private/status.json", "private/final_lora/*")
    assert {root.name: exposed(root) for root in roots} == {root.name: [] for root in roots}


def test_a_file_that_was_fetched(tmp_path: Path, there: Callable[[Path], Path]) -> None:
    datasets = there(tmp_path / "datasets")
    with receiving() as host:
        host.files["/rows.jsonl"] = b'{"text": "private"}\n'
        fetched = Downloader(datasets, allowed=("127.0.0.1",), who="agent").fetch(f"{host.url}/rows.jsonl")
    assert fetched.read_bytes() == b'{"text": "private"}\n'
    assert exposed(datasets) == []


@pytest.mark.parametrize(
    ("script", "command"),
    [(SCRIPT, ["run", "--name", "script", "--"]), (SCRIPT, None), (CALLBACK, None), (INTO, None)],
    ids=["tunefleet run", "tunefleet.control", "TrainerControlCallback", "journal=FOLDER"],
)
def test_the_folder_of_a_run_or_a_script(
    tmp_path: Path, there: Callable[[Path], Path], script: str, command: list[str] | None
) -> None:
    runs, home = there(tmp_path / "tunefleet-runs"), there(tmp_path / "home")
    (tmp_path / "script.py").write_text(script)
    cli = [] if command is None else [sys.executable, "-c", "from tunefleet.cli.main import main; main()", *command]
    done = subprocess.run(
        [*cli, sys.executable, "script.py"], cwd=tmp_path, env={**os.environ, "TUNEFLEET_HOME": str(home)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    looked_for(runs / "script", "status.json")
    assert (exposed(runs), exposed(home)) == ([], [])
