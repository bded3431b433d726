"""The command line against a real server: what it prints, the shape of `--json`, the exit code."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.api.support import ECHO, HandWorker, Running
from tests.integration.client.conftest import LOG, Cli, Played, finish
from tests.libraries import required
from tunefleet.cli import options
from tunefleet.cli.main import run
from tunefleet.cli.tasks import submit
from tunefleet.client import Client
from tunefleet.schemas.api import ArtifactView, KeyCreated, MetricsView, PruneReply, TaskDetail, TaskView
from tunefleet.schemas.fleet import WorkerView
from tunefleet.schemas.server_info import StorageView


@pytest.fixture
def echo(tmp_path: Path) -> Path:
    file = tmp_path / "echo.yaml"
    file.write_text(ECHO)
    return file


def soon(do: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(0.5, do)
    timer.start()
    return timer


def test_submit_ls_show_cancel(cli: Cli, hand: HandWorker, echo: Path) -> None:
    said = cli("submit", echo)
    assert said.code == 0
    task_id = next(word for word in said.out.split() if word.startswith("task-")).rstrip(".")
    assert "hello" in cli("ls").out
    assert cli("ls", "--status", "completed", "--kind", "none").out == "No run matches.\n"
    assert cli("ls", "--kind", "bogus").out == "No run matches.\n"
    listed = [TaskView.model_validate(task) for task in cli("ls", "--json", "--all").json]
    assert task_id in {task.id for task in listed}
    assert TaskDetail.model_validate(cli("show", task_id[:12], "--json").json).id == task_id
    assert "echo" in cli("show", task_id).out
    cancelled = cli("cancel", task_id)
    assert cancelled.out == f"{task_id} is cancelled.\n"
    assert cli("cancel", task_id).code == 0


def test_waiting_for_what_no_worker_can_run_says_why(
    cli: Cli, client: Client, echo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "_PATIENCE_S", 0.2)
    echo.write_text(ECHO.replace("spec:\n", "spec:\n  resources: {tags: [nowhere]}\n"))
    said = cli("submit", echo, "--wait", "--timeout", 2)
    task = client.tasks.list(limit=1).items[0]
    assert said.code == 10
    assert said.err.count(f"({task.id}) is unschedulable: ") == 1, said.err
    assert f"tunefleet why {task.id}`; to fail instead, use --strict" in " ".join(said.err.split())
    assert cli("submit", echo, "--wait", "--strict").code == 3, "refused before it is there"


def test_submit_waits_and_tells_how_it_ended(cli: Cli, client: Client, hand: HandWorker, echo: Path) -> None:
    def complete() -> None:
        hand.finish(hand.take(client.tasks.list(limit=1).items[0].id))

    timer = soon(complete)
    done = cli("submit", echo, "--wait", "--json")
    timer.join()
    assert (done.code, done.json["status"], done.json["result"]["result"]) == (0, "completed", {"ok": True})
    timer = soon(complete)
    shown = cli("submit", echo, "--follow")
    timer.join()
    assert shown.code == 0
    assert "hello completed after" in shown.out
    assert "Started on by-hand" in shown.out
    late = cli("submit", echo, "--wait", "--timeout", 0)
    assert (late.code, "continues" in late.err) == (10, True)
    client.tasks.cancel(client.tasks.list(limit=1).items[0].id)


def test_follow_of_a_failure_shows_why_and_the_end_of_the_log(
    cli: Cli, running: Running, hand: HandWorker, take: Callable[..., Played]
) -> None:
    played = take()
    with running.client(running.worker_key) as http:
        finish(http, hand, played, outcome="failed", reason="bad_input", error="There is no column question.")
    shown = cli("follow", played.task_id)
    assert shown.code == 1
    assert "There is no column question." in shown.out
    assert "  done" in shown.out
    assert "Traceback: here" not in cli("show", played.task_id).out
    assert "Traceback: here" in cli("show", played.task_id, "--json").json["detail"]
    again = cli("retry", played.task_id, "--json")
    assert again.json[0]["parent_task_id"] == played.task_id
    cancelled = cli("cancel", again.json[0]["id"], "--wait")
    assert cancelled.code == 0
    assert cli("follow", again.json[0]["id"], "--json").code == 9


@contextmanager
def impatient() -> Iterator[None]:
    """Press Ctrl-C after a second, and again each second: Python drops an interrupt that comes inside a destructor."""
    done = threading.Event()

    def press() -> None:
        while not done.wait(1.0):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=press)
    # Whoever runs the tests in the background of a shell has them ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_leaves_the_task_running(
    cli: Cli, client: Client, hand: HandWorker, take: Callable[..., Played]
) -> None:
    played = take()
    for command in (["follow", played.task_id], ["logs", "-f", played.task_id]):
        with impatient():
            left = cli(*command)
        assert left.code == 130
        assert "It keeps running. " in left.err
        assert played.task_id in left.err
    assert client.tasks.get(played.task_id).status == "running"


def test_logs_and_metrics(cli: Cli, hand: HandWorker, take: Callable[..., Played], client: Client) -> None:
    played = take()
    assert cli("logs", played.task_id).out.endswith(LOG)
    assert cli("logs", "-n", 2, played.task_id).out == "step 40\ndone\n"
    assert cli("logs", "-n", 0, played.task_id).out == ""
    assert cli("logs", "--json", "-n", 1, played.task_id).json == {"text": "done\n"}
    timer = soon(lambda: hand.finish(played.token))
    followed = cli("logs", "-f", "-n", 1, played.task_id)
    timer.join()
    assert (followed.code, followed.out.splitlines()[0]) == (0, "done")
    shown = cli("metrics", played.task_id)
    assert shown.out.splitlines()[0].split() == ["STEP", "LOSS", "LEARNING_RATE"]
    assert len(shown.out.splitlines()) == 21
    assert MetricsView.model_validate(cli("metrics", played.task_id, "--json").json).total == 20
    assert "loss" in cli("metrics", played.task_id, "--plot").out
    assert len(cli("metrics", played.task_id, "--max-points", 5).out.splitlines()) <= 8
    missing = cli("metrics", played.task_id, "--name", "perplexity")
    assert (missing.code, "Available: " in missing.err) == (4, True)
    quiet = client.submit(ECHO).task_id
    nothing = cli("metrics", quiet)
    assert (nothing.code, "no metrics yet" in nothing.err) == (4, True)
    client.tasks.cancel(quiet)


def test_artifacts_of_a_task(cli: Cli, hand: HandWorker, take: Callable[..., Played], tmp_path: Path) -> None:
    played = take(tmp_path)
    hand.finish(played.token)
    listed = cli("artifacts", "ls", played.task_id[:12], "--json").json
    assert [ArtifactView.model_validate(made).name for made in listed] == ["final_lora"]
    assert "final_lora" in cli("artifacts", "ls").out
    assert "final_lora" in cli("show", played.task_id).out
    got = cli("artifacts", "get", "adapter", tmp_path / "got", "--task", played.task_id)
    assert got.code == 0
    assert (tmp_path / "got" / "adapter.bin").exists()
    assert Path(cli("artifacts", "get", listed[0]["id"], tmp_path / "b", "--json").json["path"]) == tmp_path / "b"
    begun = cli("artifacts", "get", "adapter", tmp_path / "c", "--task", played.task_id[:-3], "--json")
    assert Path(begun.json["path"]) == tmp_path / "c"
    assert Path(cli("artifacts", "get", listed[0]["id"][:-2], tmp_path / "d", "--json").json["path"]) == tmp_path / "d"
    assert cli("artifacts", "get", "nothing").code == 4


@pytest.mark.parametrize("name", [".git", ".ssh", "~", "-rf", "..."])
def test_whoever_names_an_artifact_does_not_choose_the_folder(
    cli: Cli, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "config").write_text("theirs")
    made = client.artifacts.push(tmp_path / "files", name=name)
    assert Path(cli("artifacts", "get", made.id, "--json").json["path"]) == tmp_path / made.id


def test_a_fetch_replaces_only_where_the_folder_was_named(
    cli: Cli, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config").write_text("theirs")
    (tmp_path / "theirs" / "more").write_text("more")
    made = client.artifacts.push(tmp_path / "theirs", name="mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config").write_text("mine")
    refused = cli("artifacts", "get", made.id)
    assert (refused.code, "exists and differs" in refused.err) == (5, True)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["config"]
    assert cli("artifacts", "get", made.id, "mine").code == 0
    assert (tmp_path / "mine" / "config").read_text() == "theirs"
    assert cli("artifacts", "get", made.id).code == 0  # the same files are no others


def test_data(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    assert "data: {artifact: rows}" in cli("data", "push", tmp_path / "rows.jsonl", "--name", "rows").out
    assert ArtifactView.model_validate(cli("data", "push", tmp_path, "--kind", "files", "--json").json).file_count == 1
    assert "rows" in cli("data", "ls").out
    assert cli("data", "ls", "--kind", "model").out == "No model matches.\n"
    assert "rows.jsonl" in cli("data", "show", "rows").out
    assert cli("data", "show", "rows", "--json").json["files"][0]["path"] == "rows.jsonl"
    asked = cli("data", "rm", "rows")
    assert (asked.code, "--yes" in asked.err) == (3, True)
    assert cli("data", "rm", "rows", "--yes").out == "Removed rows.\n"
    assert cli("data", "show", "rows").code == 4
    assert "tunefleet data ls" in cli("data", "rm", "rows", "--yes").err
    gone = cli("data", "push", tmp_path / "none")
    assert (gone.code, "File or folder not found" in gone.err) == (4, True)


@pytest.mark.proof
@pytest.mark.torch
def test_a_preview_fetches_the_data_that_was_pushed(cli: Cli, tmp_path: Path) -> None:
    required("torch")
    (tmp_path / "asked.jsonl").write_text('{"q": "1+1=", "a": "2"}\n')
    assert cli("data", "push", tmp_path / "asked.jsonl").code == 0
    document = tmp_path / "x.yaml"
    document.write_text(
        "apiVersion: tunefleet/v1\nkind: Training\nmetadata: {name: x}\nspec:\n  taskType: sft\n"
        "  model: {source: {identifier: builtin:gsm8k-llama-2m}}\n"
        "  data: {artifact: asked.jsonl, prompt_column: q, response_column: a}\n"
    )
    assert cli("preview", document, "--json").json["total_rows"] == 1
    document.write_text(document.read_text().replace("asked.jsonl", "nothing"))
    absent = cli("preview", document)
    assert (absent.code, "Artifact nothing not found" in absent.err) == (4, True)
    assert "tunefleet data ls" in absent.err


def test_a_clone_uploads_the_files_that_its_changes_name(
    cli: Cli, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    model = {"source": {"identifier": "builtin:gsm8k-llama-2m"}}
    spec = {"taskType": "sft", "model": model, "data": {"path": "builtin:gsm8k"}}
    first = client.submit({"apiVersion": "tunefleet/v1", "metadata": {"name": "t"}, "spec": spec}).task_id
    for path in ("data.path", "spec.data.path"):
        (made,) = cli("clone", first, "--set", f"{path}=./other.jsonl", "--json").json
        assert list(made["inputs"]) == ["data.path"]
        assert f"copy of {first}" in cli("show", made["id"]).out
    assert cli("clone", first, "--set", "training.seed=7", "--json").json[0]["inputs"] == {}
    absent = cli("clone", first, "--set", "data.path=./absent.jsonl")
    assert (absent.code, "relative to the current folder" in absent.err) == (3, True)


def test_a_task_gets_a_name_tags_and_notes_and_is_listed_by_tag(cli: Cli, client: Client) -> None:
    first, second = (client.submit(ECHO).task_id for _ in range(2))
    edited = cli("edit", first, "--name", "baseline", "--tag", "edited-one", "--notes", "as before", "--json").json[0]
    assert (edited["name"], edited["tags"], edited["notes"]) == ("baseline", ["edited-one"], "as before")
    assert cli("edit", second, "--tag", "edited-one", "--tag", "other").out == f"Changed {second} (hello).\n"
    assert {task["id"] for task in cli("ls", "--tag", "edited-one", "--json").json} == {first, second}
    cli("edit", first, second, "--untag", "edited-one", "--notes", "")
    assert [client.tasks.get(id_).tags for id_ in (first, second)] == [(), ("other",)]
    restored = cli("edit", first, "--name", "", "--json").json[0]
    assert (restored["name"], restored["notes"]) == ("hello", None)
    assert (cli("edit", first).code, cli("edit", first, second, "--name", "x").code) == (3, 3)
    assert cli("edit", first, "--tag", "a,b").code == 3
    cli("cancel", first, second)


def test_clone_rm_prune(cli: Cli, client: Client, hand: HandWorker) -> None:
    first = client.submit(ECHO).task_id
    cloned = cli("clone", first, "--set", "data.items=[a, b, c]", "--json").json[0]
    assert cloned["spec"]["data"]["items"] == ["a", "b", "c"]
    assert "Submitted task-" in cli("clone", first).out
    assert cli("clone", first, "--set", "data.nothing=1").code == 3
    cli("cancel", first, cloned["id"])
    assert cli("rm", first).code == 3
    assert cli("rm", first, cloned["id"], "--yes").out == "Removed 2 runs.\n"
    assert cli("show", first).code == 4
    assert cli("prune", "--dry-run").out.startswith("Would remove 0 workflows")
    reply = PruneReply.model_validate(cli("prune", "--older-than", "0", "--yes", "--json").json)
    assert len(reply.workflows) > 0
    assert cli("prune", "--older-than", "soon").code == 3
    view = StorageView.model_validate(cli("storage", "--json").json)
    assert view.total_bytes == sum(use.size_bytes for use in view.uses) > 0
    said = cli("storage").out
    assert "database" in said
    assert "Disk: " in said


def test_workers_and_keys(cli: Cli, hand: HandWorker) -> None:
    assert "by-hand" in cli("workers").out
    assert [WorkerView.model_validate(worker).id for worker in cli("workers", "--json").json] == ["by-hand"]
    assert "echo" in cli("workers", "show", "by-").out, "the first characters are enough"
    assert cli("workers", "show", "by-hand", "--json").json["capabilities"]["cpu_count"] == 2
    assert "by-hand gets no new tasks" in cli("workers", "cordon", "by-hand").out
    assert "cordoned" in cli("workers").out
    assert "then exits" in cli("workers", "drain", "by-hand").out
    assert WorkerView.model_validate(cli("workers", "uncordon", "by-hand", "--json").json).draining is False
    assert cli("workers", "drain", "nobody").code == 4
    assert cli("workers", "rm", "nobody", "--yes").code == 4
    made = KeyCreated.model_validate(cli("keys", "create", "gpu-box", "--role", "worker", "--json").json)
    assert made.secret.startswith("tf_")
    assert cli("keys", "create", "laptop").out.startswith("tf_")
    assert "gpu-box" in cli("keys").out
    assert cli("keys", "revoke", made.id, "--yes").code == 0
    assert "revoked" in cli("keys", "ls").out
    assert cli("keys", "create", "x", "--role", "king").code == 2


def test_login(cli: Cli, running: Running, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cli("login").out.startswith(f"{running.url}/login#code=")
    monkeypatch.delenv("TUNEFLEET_KEY")
    monkeypatch.delenv("TUNEFLEET_URL")
    assert cli("ls").code == 7
    with (tmp_path / "key").open("w+") as key:
        key.write(running.admin_key + "\n")
        key.seek(0)
        monkeypatch.setattr("sys.stdin", key)
        assert "as admin (admin)" in cli("login", running.url).out
    assert cli("ls").code == 0
    assert (home / "client.json").stat().st_mode & 0o777 == 0o600
    with (tmp_path / "bad").open("w+") as key:
        key.write("tf_wrong")
        key.seek(0)
        monkeypatch.setattr("sys.stdin", key)
        assert cli("login", running.url).code == 6
    assert cli("--url", "http://127.0.0.1:9", "ls").code == 6


def test_doctor_knows_the_server(cli: Cli) -> None:
    found = {finding["name"]: finding for finding in cli("doctor", "--json").json}
    assert found["Server"]["state"] == "good"
    assert "logged in as admin" in found["Server"]["found"]


def test_completion_offers_what_is_there(
    cli: Cli, client: Client, hand: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = client.submit(ECHO).task
    assert (task.id, "hello") in [(word, about.split(",")[0]) for word, about in options.complete_task("task-")]
    assert (task.workflow_id, "hello, running") in options.complete_task_or_workflow("wf-")
    assert task.id in [word for word, _ in options.complete_task_or_workflow("task-")]
    assert options.complete_worker("by") == [("by-hand", "online")]
    assert options.complete_artifact("zzz") == []
    monkeypatch.setenv("TUNEFLEET_URL", "http://127.0.0.1:9")
    assert options.complete_task("task-") == []
    client.tasks.cancel(task.id)


def test_an_error_with_json_is_a_document(cli: Cli) -> None:
    import json

    failed = cli("show", "task-nope", "--json")
    assert failed.out == ""
    said = json.loads(failed.err)
    assert (said["error"], said["exit_code"]) == ("not_found", 4)


def test_a_document_from_standard_input(cli: Cli, client: Client, echo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with echo.open() as source:
        monkeypatch.setattr("sys.stdin", source)
        submitted = cli("submit", "-", "--json", "--idempotency-key", "k1", "--set", "data.items=[x]")
    task = submitted.json["tasks"][0]
    assert client.tasks.get(task["id"]).spec["data"]["items"] == ["x"]
    client.tasks.cancel(task["id"])


def test_run_is_the_entry_point(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tunefleet ")
