"""What must not go wrong around a bare job: names, other machines, other processes, files, ports, ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunefleet.runtime.control import ControlClient, find_endpoint
from tunefleet.schemas.control import CommandOutcomeFile, Endpoint
from tunefleet.trainer_control import process_identity
from tunefleet.trainer_control.control import discovery
from tunefleet.trainer_control.control.file_channel import MAX_FILE_BYTES
from tunefleet.trainer_control.standalone import StandaloneJob, StandaloneOptions

Open = Callable[..., StandaloneJob]


@pytest.fixture
def bare(jobs: Path) -> Iterator[Open]:
    made: list[StandaloneJob] = []

    def make(job_id: str | None = "mine", **options: Any) -> StandaloneJob:
        made.append(StandaloneJob.open(StandaloneOptions(job_id, **options)))
        return made[-1]

    yield make
    for job in made:
        job.on_exit()
    discovery._release()


def until(what: Callable[[], Any], seconds: float = 5.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)
    return found


def endpoint_of(jobs: Path, job_id: str = "mine") -> Endpoint:
    return Endpoint.model_validate_json((jobs / job_id / "endpoint.json").read_text())


def write_endpoint(jobs: Path, **fields: Any) -> Path:
    known = {
        "job_id": "mine",
        "host": "localhost",
        "port": 1,
        "pid": os.getpid(),
        "started_at": 1.0,
        "process_started_at": process_identity.process_started_at(os.getpid()),
        "boot_id": process_identity.boot_id(),
        "hostname": process_identity.hostname(),
        "token": "theirs",
    }
    file = jobs / "mine/endpoint.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({**known, **fields}))
    return file


def test_two_processes_that_start_at_once_under_one_name_both_live(jobs: Path) -> None:
    program = """
        import sys
        from tunefleet.trainer_control.standalone import StandaloneJob, StandaloneOptions
        job = StandaloneJob.open(StandaloneOptions("mine"))
        print(job.job_id, job.server.port, flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    both = [subprocess.Popen(command, stdin=-1, stdout=-1, text=True) for _ in range(2)]
    try:
        said = [process.stdout.readline().split() for process in both if process.stdout]
        assert sorted(name for name, _ in said) == ["mine", "mine-2"]
        assert {endpoint_of(jobs, name).port for name, _ in said} == {int(port) for _, port in said}
        assert [endpoint_of(jobs, name).pid for name, _ in said] == [process.pid for process in both]
    finally:
        for process in both:
            process.communicate(timeout=10)


def test_jobs_without_a_name_get_different_ones(bare: Open) -> None:
    first, second = bare(None), bare(None)
    assert first.job_id != second.job_id
    assert first.job_id.endswith(f"_{os.getpid()}")


@pytest.mark.parametrize(
    ("given", "made"),
    [("../../etc/x", "etc-x"), ("/abs", "abs"), ("meta-llama/Llama 3", "meta-llama-Llama-3"), ("..a", "a")],
)
def test_a_name_cannot_leave_the_folder(bare: Open, jobs: Path, given: str, made: str) -> None:
    assert bare(given).job_id == made
    assert [path.name for path in jobs.iterdir()] == [made]


def test_a_name_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="neither a letter"):
        discovery.sanitized_job_id("../..")


def test_a_job_of_another_machine_in_a_shared_home_is_left_alone(bare: Open, jobs: Path) -> None:
    file = write_endpoint(jobs, hostname="elsewhere")
    before = file.read_text()
    assert bare().job_id == "mine-2"
    assert file.read_text() == before


@pytest.mark.parametrize("dead", [{"process_started_at": 1.0}, {"boot_id": "another"}, {"pid": 2**22 + 1}], ids=str)
def test_what_a_dead_process_left_is_taken_over_even_if_its_pid_lives(
    bare: Open, jobs: Path, dead: dict[str, Any]
) -> None:
    write_endpoint(jobs, **dead)
    assert bare().job_id == "mine"
    assert endpoint_of(jobs).token != "theirs"


def test_a_live_process_keeps_its_name(bare: Open, jobs: Path) -> None:
    write_endpoint(jobs)
    assert bare().job_id == "mine-2"


def test_a_taken_port_leaves_files(bare: Open, jobs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        job = bare(port=other.getsockname()[1])
        assert endpoint_of(jobs).port == 0
        assert ask(jobs, "save_checkpoint")["state"] == "pending"
        assert job.board.armed


def ask(jobs: Path, command: str, at: int = 1, **fields: Any) -> dict[str, Any]:
    """Write a command file as the CLI does, and wait for its outcome."""
    folder = jobs / "mine/control"
    part = folder / ".part"
    part.write_text(json.dumps({"command": command, "timestamp": time.time(), "data": {}, **fields}))
    part.rename(folder / f"{command}_{at}.json")
    return outcome(jobs, f"{command}_{at}")


def outcome(jobs: Path, name: str) -> dict[str, Any]:
    file = jobs / f"mine/control/{name}.outcome.json"
    until(file.exists)
    return CommandOutcomeFile.model_validate_json(file.read_text()).model_dump()


def test_commands_are_files_without_http_and_their_outcomes_lie_beside_them(bare: Open, jobs: Path) -> None:
    job = bare(enable_http=False)
    assert endpoint_of(jobs).port == 0
    assert ask(jobs, "save_checkpoint", command_id="cmd-1")["state"] == "pending"
    assert [item.command_id for item in job.board.take()] == ["cmd-1"]
    job.board.applied("cmd-1", 7, saving=True)
    assert outcome(jobs, "save_checkpoint_1")["state"] == "applied"
    job.board.durable("cmd-1", "checkpoint-7")
    done = outcome(jobs, "save_checkpoint_1")
    assert (done["state"], done["step"], done["checkpoint"]) == ("durable", 7, "checkpoint-7")
    # Without an id the name is one.
    assert ask(jobs, "abort", 2)["command_id"] == "abort_2"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "not JSON"),
        (b"[]", "must be an object"),
        (b"[" * 60_000, "not JSON"),
        (b'{"command": 3}', "must be an object"),
        (b'{"command": "explode"}', "unknown command explode"),
        (b'{"command": "set", "data": {"learning_rate": NaN}}', "NaN"),
        (b'{"command": "set", "data": {"learning_rate": -1}}', "greater than 0"),
        (b"x" * (MAX_FILE_BYTES + 1), "more than"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_file_that_is_no_command_is_answered_and_does_nothing(
    bare: Open, jobs: Path, body: bytes, reason: str
) -> None:
    job = bare(enable_http=False)
    (jobs / "mine/control/abort_1.json").write_bytes(body)
    answer = outcome(jobs, "abort_1")
    assert answer["state"] == "failed"
    assert reason in answer["message"]
    assert not job.board.armed
    assert ask(jobs, "save_checkpoint", 2)["state"] == "pending"


@pytest.mark.usefixtures("as_root")
def test_a_file_of_another_user_and_a_link_do_nothing(bare: Open, jobs: Path, tmp_path: Path) -> None:
    job = bare(enable_http=False)
    theirs = tmp_path / "theirs.json"
    theirs.write_text('{"command": "abort"}')
    (jobs / "mine/control/abort_1.json").symlink_to(theirs)
    assert outcome(jobs, "abort_1")["state"] == "failed"
    os.chown(theirs, 65534, 65534)
    theirs.rename(jobs / "mine/control/abort_2.json")
    assert outcome(jobs, "abort_2")["state"] == "failed"
    assert not job.board.armed


def test_a_file_from_before_the_start_has_failed(bare: Open, jobs: Path) -> None:
    folder = jobs / "mine/control"
    folder.mkdir(parents=True)
    (folder / "abort_1.json").write_text('{"command": "abort"}')
    job = bare(enable_http=False)
    assert outcome(jobs, "abort_1")["message"] == "the training had not started"
    assert not job.board.armed


def test_a_file_that_comes_at_the_end_is_answered(bare: Open, jobs: Path) -> None:
    job = bare(enable_http=False)
    job.board.close("training had ended")
    (jobs / "mine/control/abort_1.json").write_text('{"command": "abort"}')
    job.on_exit()
    assert outcome(jobs, "abort_1")["message"] == "training had ended"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_server_thread_harms_nobody(bare: Open, caplog: pytest.LogCaptureFixture) -> None:
    job = bare()
    server = job.server._server
    assert server is not None

    def die() -> None:
        raise RuntimeError("dead")

    server.service_actions = die  # type: ignore[method-assign]
    until(lambda: "control server failed" in caplog.text)
    assert job.board.submit("save_checkpoint").state == "pending"
    ended = threading.Thread(target=job.on_exit)
    ended.start()
    ended.join(10)
    assert not ended.is_alive()


def test_a_web_page_of_another_origin_cannot_drive_it(bare: Open, jobs: Path) -> None:
    """Sends what a browser does for `fetch(url, {method: "POST", body})` from a page, with and without a preflight."""
    job = bare()
    page = (
        "Host: localhost:{port}\r\nConnection: close\r\nUser-Agent: Mozilla/5.0\r\nAccept: */*\r\n"
        "Origin: https://evil.example\r\nReferer: https://evil.example/\r\nSec-Fetch-Site: cross-site\r\n"
        "Sec-Fetch-Mode: {mode}\r\nSec-Fetch-Dest: empty\r\n"
    )
    body = '{"command": "abort"}'
    simple = f"Content-Type: text/plain;charset=UTF-8\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    asked = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type\r\n\r\n"
    # A form, and an address typed by a page that has rebound its name to 127.0.0.1, carry no JSON or another Host.
    rebound = f"Host: evil.example:{job.server.port}\r\nConnection: close\r\nSec-Fetch-Site: same-origin\r\n"
    typed = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    requests = [
        ("POST", page.format(port=job.server.port, mode="no-cors") + simple),
        ("POST", page.format(port=job.server.port, mode="cors") + typed),
        ("OPTIONS", page.format(port=job.server.port, mode="cors") + asked),
        ("GET", page.format(port=job.server.port, mode="cors") + "\r\n"),
        ("POST", rebound + typed),
    ]
    for method, rest in requests:
        path = "/jobs/mine/status" if method == "GET" else "/jobs/mine/control"
        with socket.create_connection(("127.0.0.1", job.server.port), timeout=5) as connection:
            connection.sendall(f"{method} {path} HTTP/1.1\r\n{rest}".encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        assert answer.startswith("HTTP/1.1 403 "), (method, answer)
        assert "access-control-allow" not in answer.lower()
    assert not job.board.armed
    endpoint = find_endpoint(jobs, "mine")
    assert endpoint is not None
    assert ControlClient(endpoint).send("save_checkpoint").status == "acknowledged"


ENDS = {
    "raise": ("raise RuntimeError('boom')", "failed", "RuntimeError: boom"),
    "oom": ("raise RuntimeError('CUDA out of memory.')", "failed", "RuntimeError: CUDA out of memory"),
    "caught": ("\ntry:\n    raise RuntimeError('boom')\nexcept RuntimeError:\n    pass\njob.end()", "completed", None),
    "exit": ("sys.exit(3)", "failed", "The process ended before its training did."),
    "record": ("from torch.distributed.elastic.multiprocessing.errors import record\n@record\ndef main():\n"
               "    raise RuntimeError('boom')\nmain()", "failed", "RuntimeError: boom"),
    "after": ("job.end()\nraise RuntimeError('later')", "completed", None),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_the_end_is_told_as_it_was(name: str, jobs: Path) -> None:
    code, state, error = ENDS[name]
    program = (
        "import sys\nfrom tunefleet.trainer_control.standalone import StandaloneJob, StandaloneOptions\n"
        f"job = StandaloneJob.open(StandaloneOptions('mine'))\njob.begin(0, None)\n{code}\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    status = json.loads((jobs / "mine/status.json").read_text())
    assert (status["state"], bool(error)) == (state, bool(status["error"])), ran.stderr
    if error:
        assert status["error"].startswith(error)
    if name == "raise":
        assert "RuntimeError: boom" in status["traceback"]
        assert "RuntimeError: boom" in ran.stderr
    assert status["error_kind"] == {"oom": "oom", "completed": None}.get(name if name == "oom" else state, "bug")
    assert not (jobs / "mine/endpoint.json").exists()
