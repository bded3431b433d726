"""Bad input and faults as a user meets them: the command line as a process, against a real server and worker."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = pytest.mark.proof

PAIR = "prompt_column: question, response_column: answer"
MODEL = "builtin:gsm8k-llama-2m"
ROW = '{"question": "a", "answer": "b"}\n'
FILES = {"rows.jsonl": ROW, "empty.jsonl": "", "other.jsonl": '{"other": 1}\n', "no_model/README.md": "nothing"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@dataclass
class Shell:
    """Runs `tunefleet` in a folder, with a server's URL and key."""

    folder: Path
    url: str
    key: str
    environment: dict[str, str] = field(default_factory=dict)

    def refused(self, *arguments: str, key: str | None = None) -> str:
        """Run a command that must fail in one sentence; returns what it wrote."""
        run = self.run(*arguments, key=key)
        assert run.returncode not in {0, 70, -9}, run.stdout
        assert "Traceback" not in run.stdout
        return run.stdout

    def run(self, *arguments: str, key: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command; both of its outputs are in `stdout`."""
        variables = {"TUNEFLEET_URL": self.url, "TUNEFLEET_KEY": key or self.key, **self.environment}
        return subprocess.run(
            [sys.executable, "-c", "from tunefleet.cli.main import main; main()", *arguments],
            cwd=self.folder,
            env={**os.environ, **OFFLINE, "COLUMNS": "400", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )

    def submit(self, data: str, model: str = MODEL, extra: str = "") -> str:
        """Submit a training that must fail, and wait for its end; returns what was written."""
        document = self.folder / "run.yaml"
        document.write_text(f"""apiVersion: tunefleet/v1
kind: LoRASFTTask
metadata: {{name: run}}
spec:
  taskType: lora_sft
  model: {{source: {{identifier: "{model}"}}}}
  data: {{{data}}}
  training: {{max_steps: 2{extra}}}
  retry: {{max_attempts: 1}}
""")
        return self.refused("submit", "run.yaml", "--follow")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    data = tmp_path_factory.mktemp("fleet")
    environment = {**OFFLINE, "TUNEFLEET_MAX_BODY_BYTES": "100000", "TUNEFLEET_WARM_START": "true"}
    with LocalFleet(data, port=free_port(), environment=environment, save_client=False) as fleet:
        yield fleet


@pytest.fixture
def shell(fleet: LocalFleet, tmp_path: Path) -> Shell:
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return Shell(tmp_path, fleet.url, fleet.key, {"TUNEFLEET_HOME": str(tmp_path / "home")})


def archives(folder: Path) -> None:
    """Make archives that nobody should unpack."""
    with tarfile.open(folder / "climbs.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("../evil.jsonl")
        member.size = len(ROW)
        tar.addfile(member, io.BytesIO(ROW.encode()))
    with tarfile.open(folder / "links.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("rows.jsonl")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)
    with zipfile.ZipFile(folder / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("rows.jsonl", bytes(80 << 20))


def nothing_was_stored(fleet: LocalFleet) -> bool:
    with Client(fleet.url, fleet.key) as client:
        return not client.workflows.list().items


def test_what_is_refused_before_anything_is_stored(fleet: LocalFleet, shell: Shell) -> None:
    assert "did you mean prompt_column?" in shell.submit("path: rows.jsonl, promt_column: a, response_column: b")
    assert "must be an integer, not 'many'" in shell.submit(f"path: rows.jsonl, {PAIR}", extra=", seed: many")
    assert f"not found at {shell.folder}/nothing.jsonl" in shell.submit(f"path: nothing.jsonl, {PAIR}")
    assert f"not found at {shell.folder}/nowhere" in shell.submit(f"path: rows.jsonl, {PAIR}", "./nowhere")
    assert "Data 'unknown' not found" in shell.submit(f"artifact: unknown, {PAIR}")
    texts = ", ".join(f"{'x' * 900}" for _ in range(200))
    said = shell.submit(f"prompts: [{texts}]")
    assert "exceeds 100000 bytes" in said
    assert "TUNEFLEET_MAX_BODY_BYTES" in said
    assert nothing_was_stored(fleet)


def test_a_key_that_is_wrong_revoked_or_of_another_role(fleet: LocalFleet, shell: Shell) -> None:
    assert "The key is not valid." in shell.refused("ls", key="tf_wrong")
    with Client(fleet.url, fleet.key) as client:
        viewer = client.keys.create("reader", role="viewer")
        assert "admin or member" in shell.refused("cancel", "task-0", key=viewer.secret)
        client.keys.revoke(viewer.id)
    assert "was revoked" in shell.refused("ls", key=viewer.secret)


def test_a_server_that_does_not_answer(shell: Shell, free_port: Callable[[], int]) -> None:
    shell.url = f"http://127.0.0.1:{free_port()}"
    said = shell.refused("ls")
    assert "No server responds at" in said
    assert "tunefleet up" in said


def test_what_only_the_worker_can_see(fleet: LocalFleet, shell: Shell) -> None:
    archives(shell.folder)
    wrong = {
        "has no column 'anser'": "path: rows.jsonl, prompt_column: question, response_column: anser",
        "empty.jsonl has no rows": f"path: empty.jsonl, {PAIR}",
        "has no column 'text'": "path: other.jsonl, text_field: text",
        "climbs.tar.gz is unsafe.": f"path: climbs.tar.gz, {PAIR}",
        "is a link or a device.": f"path: links.tar.gz, {PAIR}",
        "It looks like an archive bomb": f"path: bomb.zip, {PAIR}",
    }
    for sentence, data in wrong.items():
        assert sentence in shell.submit(data)
    assert "has no config.json" in shell.submit(f"path: rows.jsonl, {PAIR}", "./no_model")
    assert "org/no-such-model" in shell.submit(f"path: rows.jsonl, {PAIR}", "org/no-such-model")
    with Client(fleet.url, fleet.key) as client:
        failed = client.tasks.list().items
        assert {task.status for task in failed} == {"failed"}
        # What `--json` has besides is for those who mend Tunefleet.
        assert "Traceback" in (client.tasks.get(failed[0].id).detail or "")
        shown = shell.run("show", failed[0].id)
        assert "org/no-such-model" in shown.stdout
        assert "Traceback" not in shown.stdout
        assert {artifact.kind for artifact in client.artifacts.list().items} <= {"dataset", "model"}
    assert not list(fleet.results_dir().rglob("evil.jsonl"))
