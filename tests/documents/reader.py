"""Follows a page as a newcomer does: saves the files that it shows, and types its commands, in an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from tests.documents.blocks import ROOT, Block, Command, blocks
from tests.documents.likeness import difference

PATIENCE_S: Final = 240.0
_LOOK_S: Final = 0.1
_GRACE_S: Final = 60.0
_ABORTED = 9
"""Exit code of a script that `tunefleet control abort` has ended."""
_ASKS: Final = "tunefleet control status"
_KEPT: Final = re.compile(r"^(?:export|cd|source) ")
_SERVES: Final = "it answers"
_STAYS: Final = (
    (r"(?:\S+=\S+ )*tunefleet up\b", "Tunefleet is up at"),
    (r"(?:\S+=\S+ )*tunefleet worker(?: --(?!on)|$)", "Registered as"),
    (r"(?:\S+=\S+ )*tunefleet join\b", "Registered as"),
    (r"(?:\S+=\S+ )*tunefleet agent$", "Tunefleet agent"),
    (r"(?:\S+=\S+ )*tunefleet server\b", _SERVES),
    (r"redis-server\b", "Ready to accept connections"),
    (r"tunefleet control watch\b", ""),
    (r"tunefleet campaign run\b", ""),
    (r"tunefleet campaign logs -f\b", ""),
    (r"tunefleet run ", ""),
    (r".* &$", ""),
)
"""Commands that stay until they are ended, and what they say when they are ready."""
_STARTED: Final = {
    r"tunefleet run --(?:name|resume) my-run": "my-run",
    r"python train.py": "my-run",
    r"python examples/control/minimal.py": "minimal",
    r"python examples/control/complete.py": "complete",
}
"""Trainings that take commands once they are listed."""
_ID: Final = re.compile(r"\b((?:task|wf|fed|key|art|inv)-[0-9a-f]{8,12})\b")


@dataclass
class Scene:
    """What a page takes for granted: who reads it has files, a server, a task.

    Args:
        values: What stands for the reader's own words, such as `TASK`; what is callable is asked when it is needed.
        files: Name to text, of what the reader has.
        before: Commands that were typed before.
        prepare: What else is made before the page is read.
        environment: Variables of the reader's terminal.
    """

    values: Mapping[str, str | Callable[[Reader], str]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    prepare: Callable[[Reader], None] | None = None
    environment: Mapping[str, str | Callable[[Reader], str]] = field(default_factory=dict)


class Reader:
    """Somebody at a terminal.

    Args:
        folder: An empty one; home and working directory are made in it.
        port: What a server of theirs listens on, where a page says 8000.
        settings: The folder `~/.tunefleet`, if there is a server already; else an empty one is made.
    """

    def __init__(self, folder: Path, port: int, settings: Path | None = None) -> None:
        self.home, self.here = folder / "home", folder / "here"
        self.home.mkdir(parents=True)
        self.here.mkdir()
        if settings is not None:
            (self.home / ".tunefleet").symlink_to(settings)
        self.port = port
        self.seen: dict[str, list[str]] = {}
        self.output = self.history = ""
        self._kept: list[str] = []
        self._staying: list[tuple[str, subprocess.Popen[bytes], Path]] = []
        self.environment = self._environment()

    def _environment(self) -> dict[str, str]:
        ours = ("TUNEFLEET_", "ORCHESTRATOR_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        programs = Path(sys.executable).parent
        return kept | {
            "HOME": str(self.home),
            "PATH": f"{programs}:{kept['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "TUNEFLEET_PORT": str(self.port),
            "TUNEFLEET_ENVS_DIR": str(self.home / "envs"),
            "COLUMNS": "120",
            "NO_COLOR": "1",
            "PYTHONWARNINGS": "ignore",
        }

    @property
    def url(self) -> str:
        """The address of the reader's server."""
        return f"http://127.0.0.1:{self.port}"

    def last(self, kind: str) -> str:
        """Return the id of this kind (`task`, `wf`, `fed` …) that a command printed last."""
        assert self.seen.get(kind), f"no command has printed the id of a {kind}"
        return self.seen[kind][-1]

    def follow(self, page: Path, scene: Scene) -> None:
        """Read a page from its beginning to its end.

        Raises:
            AssertionError: If a command fails, or says something else than the page shows.
        """
        for name, value in scene.environment.items():
            self.environment[name] = value(self) if callable(value) else value
        for name, text in scene.files.items():
            self.save(name, text)
        for line in scene.before:
            self.type(line, scene, "before the page")
        if scene.prepare is not None:
            scene.prepare(self)
        for block in blocks(page):
            self._block(block, scene)

    def _block(self, block: Block, scene: Scene) -> None:
        self._kept.clear()  # a terminal of its own
        file = block.note("file")
        if file is not None:
            self.save(file.said, self._filled(block.text, scene))
        if block.language == "python" and block.note("run"):
            self.save("typed.py", self._filled(block.text, scene))
            self.type("python typed.py", scene, block.where)
        for command in block.run:
            self.type(command.text, scene, block.where, command)

    def save(self, name: str, text: str) -> None:
        """Write a file into the working directory."""
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def have(self, *names: str) -> None:
        """Copy parts of the repository into the working directory, as a clone has them."""
        for name in names:
            source, target = ROOT / name, self.here / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)

    def type(self, line: str, scene: Scene, where: str, command: Command | None = None) -> str:
        """Run a line; returns what it printed, once it has ended or, if it stays, is ready."""
        line = self._filled(line, scene)
        if _KEPT.match(line):
            self._kept.append(line)
        stays = next((ready for pattern, ready in _STAYS if re.match(pattern, line)), None)
        if stays is not None:
            return self._start(line, stays, where)
        shown = command.shown if command is not None else ()
        deadline = time.monotonic() + (PATIENCE_S if line.startswith(_ASKS) else 0.0)
        # A training that has just begun has not logged all that the page shows.
        while (unlike := difference(shown, self._run(line, where).splitlines())) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        assert unlike is None, f"{where}: `{line}` says something else than the page: {unlike}\n{self.output}"
        return self.output

    def _run(self, line: str, where: str) -> str:
        done = subprocess.run(
            ["bash", "-c", self._script(line)], cwd=self.here, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_S, check=False, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{where}: `{line}` ended with {done.returncode}:\n{done.stdout}"
        self._note(done.stdout)
        return done.stdout

    def submitted(self, name: str) -> str:
        """Submit a document and return the id of its task."""
        self.type(f"tunefleet submit {name}", Scene(), "before")
        return self.last("task")

    def until(self, line: str, words: str) -> None:
        """Type a line again and again until its output has these words."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.type(line, Scene(), "waiting"):
            assert time.monotonic() < deadline, f"`{line}` does not say {words}:\n{self.output}"
            time.sleep(_LOOK_S)

    def _script(self, line: str) -> str:
        return "\n".join([*(kept for kept in self._kept if kept != line), line])

    def _note(self, output: str) -> None:
        self.output = output
        self.history += output
        for found in _ID.findall(output):
            self.seen.setdefault(found.partition("-")[0], []).append(found)

    def _filled(self, text: str, scene: Scene) -> str:
        for word, value in scene.values.items():
            if re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text):
                said = value(self) if callable(value) else value
                text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", said.replace("\\", r"\\"), text)
        text = text.replace(".venv/bin/", "").replace("https://tunefleet.example.org", self.url)
        return re.sub(r"\b(127\.0\.0\.1|localhost|server(?:\.lab)?):8000\b", f"127.0.0.1:{self.port}", text)

    def _start(self, line: str, ready: str, where: str) -> str:
        log = self.here.parent / f"stays-{len(self._staying)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", self._script(f"exec env {line.removesuffix(' &')}")], cwd=self.here,
                env=self.environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self._staying.append((line, process, log))
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_ready(ready, log):
            said = log.read_text(encoding="utf-8", errors="replace")
            assert process.poll() is None, f"{where}: `{line}` has ended with {process.returncode}:\n{said}"
            assert time.monotonic() < deadline, f"{where}: `{line}` is not ready:\n{said}"
            time.sleep(_LOOK_S)
        for pattern, job in _STARTED.items():
            if re.match(pattern, line):
                self.until("tunefleet control list --json", f'"job_id": "{job}"')  # paused ones are only named
        self._note(log.read_text(encoding="utf-8", errors="replace"))
        return self.output

    def _is_ready(self, ready: str, log: Path) -> bool:
        if ready != _SERVES:
            return ready in log.read_text(encoding="utf-8", errors="replace")
        try:
            with urlopen(f"{self.url}/healthz", timeout=_GRACE_S):
                return True
        except OSError:
            return False

    def end(self) -> None:
        """Press Ctrl-C in every terminal, the newest first; a process that failed by itself is a fault.

        One that a page has aborted has not.
        """
        faults = []
        while self._staying:
            line, process, log = self._staying.pop()
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(_GRACE_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    faults.append(f"`{line}` did not end")
            elif process.returncode not in {0, _ABORTED}:
                said = log.read_text(encoding="utf-8", errors="replace")
                faults.append(f"`{line}` ended with {process.returncode}:\n{said}")
        assert not faults, "\n".join(faults)
