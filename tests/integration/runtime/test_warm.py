"""The fork server: forks what is asked of it, is asked by its user alone, and keeps nothing of its own alive."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.runtime.conftest import environment, kill, make_job, process_of, training, until
from tunefleet.errors import MachineError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import Supervisor, locks
from tunefleet.runtime.environment import SERVER_ENV
from tunefleet.runtime.warm import client as module
from tunefleet.runtime.warm.client import WarmStarter, socket_folder
from tunefleet.trainer_control import process_identity

pytestmark = pytest.mark.proof

LIGHT = """
import sys
from tunefleet.runtime.warm import fork_server
fork_server.PRELOAD = ("tunefleet.workloads.entrypoint", "fake_trainer")
fork_server.ORPHAN_S = float(sys.argv[4])
sys.exit(fork_server.main(sys.argv[1:4]))
"""
"""A fork server that imports the fake trainer instead of the training libraries, and is ready in half a second."""


def start_light(starter: WarmStarter, base: dict[str, str], *, idle_s: float = 60, orphan_s: float = 60) -> int:
    command = [
        sys.executable,
        "-P",
        "-c",
        LIGHT,
        str(starter.socket_path),
        str(idle_s),
        str(os.getpid()),
        str(orphan_s),
    ]
    with starter.socket_path.with_suffix(".log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**base, **SERVER_ENV}, start_new_session=True)
    threading.Thread(target=server.wait, daemon=True).start()
    until(lambda: starter.server_pid() is not None)
    return server.pid


@pytest.fixture(autouse=True)
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for sockets of this test alone; its path is short, as a socket's must be."""
    with tempfile.TemporaryDirectory(prefix="tf-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setattr(module, "socket_folder", lambda: Path(folder))
        yield Path(folder)


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor with a light fork server."""
    base = environment(tmp_path)
    start_light(WarmStarter(base, idle_s=60), base)
    supervisor = Supervisor(
        tmp_path / "results", endpoints_dir=tmp_path / "home" / "jobs", warm=True, warm_idle_s=60, base_env=base
    )
    yield supervisor
    supervisor.close()
    for lock in supervisor.results_dir.glob("*/lock"):
        for pid in locks.holders(lock):
            kill(pid)


def starter_of(supervisor: Supervisor) -> WarmStarter:
    assert supervisor._warm is not None
    return supervisor._warm


def server_pid(supervisor: Supervisor) -> int:
    pid = starter_of(supervisor).server_pid()
    assert pid is not None
    return pid


def test_a_forked_job_is_like_a_fresh_one(warm: Supervisor) -> None:
    job = make_job("look", gpus=("GPU-x",)).model_copy(update={"env": {"WANDB_MODE": "offline"}})
    handle = warm.launch(job)
    until(lambda: (handle.folder.root / "facts.json").exists())
    until(lambda: "printed, and seen" in handle.folder.log.read_text())
    assert handle.poll() is None
    end = handle.wait(10)
    assert end is not None
    assert (end.outcome, end.returncode) == ("completed", 0)
    process, facts = process_of(handle), json.loads((handle.folder.root / "facts.json").read_text())
    assert process.warm
    assert (facts["pid"], facts["pgid"], facts["ppid"]) == (process.pid, process.pid, process.keeper_pid)
    assert facts["sid"] == process.keeper_pid != os.getsid(server_pid(warm))
    assert (facts["cwd"], facts["stdin"]) == (str(handle.folder.root), "/dev/null")
    assert facts["stdout"] == str(handle.folder.log)
    assert facts["signals"] == {
        "SIGTERM": "<Handlers.SIG_DFL: 0>",
        "SIGCHLD": "<Handlers.SIG_DFL: 0>",
        "SIGINT": "<built-in function default_int_handler>",
    }
    expected = {**warm._base_env, "WANDB_MODE": "offline", "CUDA_VISIBLE_DEVICES": "GPU-x"}
    assert {name: value for name, value in facts["environ"].items() if name != "LC_CTYPE"} == expected
    log = handle.folder.log.read_text()
    assert "INFO fake: told" in log  # the program's own format, not the server's


def test_fault_29_forked_jobs_leave_each_other_nothing_of_their_devices(warm: Supervisor) -> None:
    base = warm._base_env.get("CUDA_VISIBLE_DEVICES")
    for number, (given, expected) in enumerate(
        [(("GPU-b",), "GPU-b"), (("GPU-a", "GPU-b"), "GPU-a,GPU-b"), ((), base)]
    ):
        handle = warm.launch(make_job("pin", job_id=f"task-{number}", gpus=given, devices="7"))
        assert (end := handle.wait(20)) is not None
        assert end.outcome == "completed"
        assert process_of(handle).warm, "all of them come from one fork server"
        assert json.loads((handle.folder.root / "given.json").read_text()) == expected


def test_the_server_itself_holds_no_key_and_one_thread(warm: Supervisor) -> None:
    environ = Path(f"/proc/{server_pid(warm)}/environ").read_bytes().split(b"\0")
    names = {entry.partition(b"=")[0].decode() for entry in environ}
    assert not {"TUNEFLEET_KEY", "TUNEFLEET_WORKER_KEY", "ORCHESTRATOR_TOKEN"} & names
    assert {b"OMP_NUM_THREADS=1", b"OPENBLAS_NUM_THREADS=1", b"PYTORCH_NVML_BASED_CUDA_CHECK=1"} <= set(environ)
    assert len(list(Path(f"/proc/{server_pid(warm)}/task").iterdir())) == 1


def test_a_killed_fork_server_ends_no_job(warm: Supervisor) -> None:
    handle = warm.launch(make_job("train", steps=40))
    until(lambda: training(handle))
    kill(server_pid(warm))
    end = handle.wait(15)
    assert end is not None
    assert (end.outcome, end.returncode) == ("completed", 0)


def test_a_fork_server_that_ends_ends_no_job_and_its_name_is_free(warm: Supervisor) -> None:
    handle = warm.launch(make_job("train", steps=40))
    until(lambda: training(handle))
    warm.close()
    path = starter_of(warm).socket_path
    until(lambda: not path.exists() and not path.with_suffix(".lock").exists())
    assert handle.wait(15) is not None


def test_a_killed_trainer_or_keeper_of_a_forked_job(warm: Supervisor) -> None:
    first, second = (warm.launch(make_job("train", steps=40, job_id=name)) for name in ("task-1", "task-2"))
    until(lambda: training(first) and training(second))
    kill(process_of(first).pid)
    kill(process_of(second).keeper_pid)
    killed, completed = first.wait(15), second.wait(15)
    assert killed is not None
    assert completed is not None
    assert (killed.reason, killed.returncode) == (TaskReason.KILLED, -signal.SIGKILL)
    assert (completed.reason, completed.returncode) == (TaskReason.FINISHED, None)


def test_a_job_that_sets_what_is_read_at_import_starts_cold(warm: Supervisor) -> None:
    handle = warm.launch(make_job("finish").model_copy(update={"env": {"HF_HOME": "/elsewhere"}}))
    assert handle.wait(20) is not None
    assert not process_of(handle).warm


def test_a_launch_that_has_ended_is_not_run_again(warm: Supervisor) -> None:
    handle = warm.launch(make_job("finish"))
    assert handle.wait(20) is not None
    until(lambda: not handle.alive)
    reply = starter_of(warm).start(handle.folder.root)
    assert reply is not None
    assert (reply["ok"], reply["code"]) == (False, "ended")


def test_a_gpu_that_is_taken_is_named(warm: Supervisor) -> None:
    handle = warm.launch(make_job("train", gpus=("GPU-a",)))
    with pytest.raises(MachineError, match="GPU GPU-a is in use by job task-1"):
        warm.launch(make_job("train", gpus=("GPU-a",), job_id="task-2"))
    handle.cancel(5)
    assert handle.wait(10) is not None


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"relative/path\n",
        b"[]\n",
        b'{"folder": "/etc"',
        b"\xff" * 9000,
        b'{"leaves": 1}\n',
        b'{"folder": "/no/such/folder", "environment": {}, "idle_s": 1}\n',
        b'{"folder": "/etc", "environment": []}\n',
    ],
)
def test_anything_but_a_job_folder_is_not_answered(warm: Supervisor, request_: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(starter_of(warm).socket_path))
        connection.sendall(request_)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # it did not read all of it
            assert connection.recv(100) == b""
    handle = warm.launch(make_job("finish"))
    assert handle.wait(20) is not None
    assert process_of(handle).warm


def test_another_user_is_refused(warm: Supervisor, as_root: None, tmp_path: Path) -> None:
    handle = warm.launch(make_job("finish"))
    assert handle.wait(20) is not None
    path = starter_of(warm).socket_path
    # The folder keeps others out; without it the server itself must.
    folder, mode = path.parent, stat.S_IMODE(path.parent.stat().st_mode)
    code = (
        "import os, socket, sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "connection = socket.socket(socket.AF_UNIX)\n"
        "connection.settimeout(5)\n"
        "connection.connect(sys.argv[1])\n"
        "connection.sendall(sys.argv[2].encode() + b'\\n')\n"
        "print(connection.recv(100))\n"
    )
    command = [sys.executable, "-S", "-c", code, str(path), str(handle.folder.root)]
    locked_out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "PermissionError" in locked_out.stderr
    try:
        folder.chmod(0o755)
        path.chmod(0o777)
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        folder.chmod(mode)
    # It may even have hung up before the request was sent.
    assert refused.stdout in ("", "b''\n")
    assert "Rejected a request of user 65534" in path.with_suffix(".log").read_text()


def test_a_stale_server_ends_and_the_job_starts_cold(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    base = environment(tmp_path)
    base["PYTHONPATH"] += f":{site}"
    starter = WarmStarter(base, idle_s=60)
    pid = start_light(starter, base)
    supervisor = Supervisor(tmp_path / "results", endpoints_dir=tmp_path / "home" / "jobs", base_env=base)
    first = supervisor.launch(make_job("finish", job_id="task-0"))
    assert first.wait(20) is not None
    assert process_of(first).warm
    (site / "new_package.py").touch()
    handle = supervisor.launch(make_job("finish"))
    end = handle.wait(20)
    assert end is not None
    assert end.outcome == "completed"
    assert not process_of(handle).warm
    until(lambda: process_identity.process_started_at(pid) is None)
    supervisor.close()


@pytest.mark.parametrize(("idle_s", "orphan_s", "word"), [(0.5, 60, "no job was requested"), (60, 0.5, "are gone")])
def test_a_server_that_nobody_needs_ends(tmp_path: Path, idle_s: float, orphan_s: float, word: str) -> None:
    base = environment(tmp_path)
    path = WarmStarter(base, idle_s=60).socket_path
    log = path.with_suffix(".log")
    command = [sys.executable, "-P", "-c", LIGHT, str(path), str(idle_s)]
    starting = (
        "import os, subprocess\n"
        f"command = [*{command!r}, str(os.getpid()), '{orphan_s}']\n"
        "print(subprocess.Popen(command, stdout=2, start_new_session=True).pid)"
    )
    with log.open("wb") as stream:
        parent = subprocess.run(
            [sys.executable, "-S", "-c", starting],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stream,
            env=base,
            check=True,
        )
    pid, words = int(parent.stdout), log.open()
    with words:
        until(lambda: process_identity.process_started_at(pid) is None)
        assert word in words.read()
    assert not path.exists()


def test_one_server_serves_all_of_a_users_supervisors(warm: Supervisor, tmp_path: Path) -> None:
    pid = server_pid(warm)
    second = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "tunefleet.runtime.warm.fork_server",
            str(starter_of(warm).socket_path),
            "60",
            "1",
        ],
        stdin=subprocess.DEVNULL,
        check=False,
        env={**warm._base_env},
        capture_output=True,
    )
    assert second.returncode == 0
    other = Supervisor(tmp_path / "other", endpoints_dir=tmp_path / "home" / "jobs", base_env=warm._base_env)
    assert server_pid(other) == pid
    handle = other.launch(make_job("finish"))
    assert handle.wait(20) is not None
    assert process_of(handle).warm


def test_workers_of_other_names_share_a_server_and_their_jobs_have_their_own_environment(
    warm: Supervisor, tmp_path: Path
) -> None:
    pid, own = server_pid(warm), {"WORKER_ID": "other", "TUNEFLEET_HOME": str(tmp_path / "elsewhere")}
    other = Supervisor(
        tmp_path / "other", endpoints_dir=tmp_path / "elsewhere" / "jobs", base_env={**warm._base_env, **own}
    )
    assert server_pid(other) == pid
    for number, (supervisor, expected) in enumerate([(other, own), (warm, warm._base_env), (other, own)]):
        handle = supervisor.launch(make_job("look", job_id=f"task-{number}"))
        assert handle.wait(20) is not None
        assert process_of(handle).warm
        environ = json.loads((handle.folder.root / "facts.json").read_text())["environ"]
        assert {name: environ.get(name) for name in own} == {name: expected.get(name) for name in own}


def test_a_server_outlives_the_worker_that_started_it_while_another_one_needs_it(
    warm: Supervisor, tmp_path: Path
) -> None:
    pid = server_pid(warm)
    leaves = (
        "import json, sys\n"
        "from tunefleet.runtime.warm.client import WarmStarter\n"
        "from tunefleet.runtime.warm import client as warm\n"
        "from pathlib import Path\n"
        "warm.socket_folder = lambda: Path(sys.argv[1])\n"
        "starter = WarmStarter(json.loads(sys.argv[2]), idle_s=60)\n"
        "starter.prepare()\n"
        "print(starter.server_pid(), flush=True)\n"
        "starter.close()\n"
    )
    folder = str(starter_of(warm).socket_path.parent)
    command = [sys.executable, "-c", leaves, folder, json.dumps(warm._base_env)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=warm._base_env)
    assert int(done.stdout) == pid
    assert server_pid(warm) == pid, "it is needed here"
    warm.close()
    # By nobody now.
    until(lambda: process_identity.process_started_at(pid) is None)


def test_a_socket_folder_of_somebody_else_is_not_used(
    tmp_path: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "socket_folder", socket_folder)
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(sockets))
    folder = socket_folder()
    assert folder.parent == sockets
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    with pytest.raises(MachineError, match="private"):
        socket_folder()
    supervisor = Supervisor(tmp_path / "results", endpoints_dir=tmp_path / "jobs", base_env=environment(tmp_path))
    assert supervisor._warm is None
    assert any("Warm starts are disabled" in record.message for record in caplog.records)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(MachineError, match="private"):
        socket_folder()


def test_a_long_temporary_folder_does_not_make_the_path_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path / ("x" * 90)))
    assert len(str(socket_folder())) < 40


def test_a_server_that_cannot_start_costs_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.WarmStarter, "_spawn", lambda self: subprocess.Popen([sys.executable, "-S", "-c", ""]))
    supervisor = Supervisor(
        tmp_path / "results", endpoints_dir=tmp_path / "home" / "jobs", base_env=environment(tmp_path)
    )
    handle = supervisor.launch(make_job("finish"))
    assert handle.wait(60) is not None
    assert not process_of(handle).warm
