"""The actor without Ray: its command is guarded by a real process, which is no child of it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

from tunefleet.workloads.ray_nodes.node import Node


def _run(node: Node, command: list[str], **environment: str) -> tuple[int, str]:
    try:
        return node.run(command, environment)
    finally:
        node._line.close()


def _appears(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} does not appear"
        time.sleep(0.02)


def test_the_command_gets_its_number_and_variables_and_its_exit_code_is_told(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = f'echo "$TUNEFLEET_NODE $WORD" > {out}; exit 75'
    assert _run(Node(3, 5.0), ["sh", "-c", script], WORD="it's") == (75, "")
    assert out.read_text() == "3 it's\n"


def test_a_command_that_is_not_there_is_a_fault() -> None:
    assert _run(Node(0, 5.0), ["tunefleet-nowhere"]) == (1, "tunefleet-nowhere: No such file or directory")


def test_one_that_does_not_heed_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    node, script = Node(0, 0.3), f"trap 'echo x' TERM; touch {begun}; while :; do sleep 0.05; done"
    ended: list[tuple[int, str]] = []
    thread = threading.Thread(target=lambda: ended.append(_run(node, ["sh", "-c", script])))
    thread.start()
    _appears(begun)
    node.stop()
    thread.join(20)
    assert ended == [(137, "")]
    node.stop()


def test_a_command_ends_with_a_word_when_the_actor_is_killed(tmp_path: Path) -> None:
    begun, heard = tmp_path / "begun", tmp_path / "heard"
    script = f"trap 'touch {heard}; exit 0' TERM; touch {begun}; while :; do sleep 0.05; done"
    actor = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"from {Node.__module__} import Node; Node(0, 5.0).run(['sh', '-c', {script!r}], {{}})",
        ]
    )
    _appears(begun)
    actor.kill()
    actor.wait()
    _appears(heard)
