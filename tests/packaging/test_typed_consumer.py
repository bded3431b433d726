"""Programs that use the installed package are type-checked by it: a right one passes, each wrong use is an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]
RIGHT = '''
"""Submit a training, follow it, and fetch what it has made."""

from pathlib import Path

from tunefleet import AsyncClient, Client, TrainerControlCallback, control
from tunefleet.errors import SpecError


def train(document: Path) -> dict[int, float]:
    losses: dict[int, float] = {}
    with Client("http://127.0.0.1:8000", "key") as client:
        try:
            run = client.submit(document, overrides={"training.learning_rate": 1e-4})
        except SpecError as error:
            print(*(f"{fault.line}: {fault.message}" for fault in error.faults))
            raise
        for point in run.follow_metrics():
            loss = point.values.get("loss")
            if loss is not None:
                losses[point.step or 0] = float(loss)
        client.tasks.pause_and_wait(run.task_id)
        task = client.tasks.resume(run.task_id)
        status: str = run.wait(timeout_s=60.0).status
        print(task.id, status, run.fetch("final_lora", "./adapter"))
    return losses


async def count() -> int:
    async with AsyncClient() as client:
        return len([task.id async for task in client.tasks.iterate(status="running")])


HOOKS = (TrainerControlCallback, control)
'''
WRONG = {
    'client.submit(3)': "arg-type",
    'client.submit("run.yaml", override={})': "call-arg",
    'client.tasks.paus("task-1")': "attr-defined",
    'client.submit("run.yaml").wait(timeout_s="long")': "arg-type",
    'number: int = client.submit("run.yaml").wait().status': "assignment",
    'point: int = next(iter(client.submit("run.yaml").follow_metrics()))': "assignment",
}  # fmt: skip


def checked(program: Path, bin_: Path, folder: Path) -> tuple[int, list[str]]:
    """Let mypy look at a program that somebody has written against what is installed there."""
    options = ["--strict", "--no-color-output", "--no-error-summary", "--config-file="]
    command = [sys.executable, "-m", "mypy", *options, "--python-executable", bin_ / "python"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MYPY", "PYTHON"))}
    done = subprocess.run(
        [*command, "--cache-dir", folder / "cache", program], cwd=folder, env=environment, capture_output=True,
        text=True, timeout=500, check=False,
    )  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).splitlines()


def test_a_right_program_passes_and_each_wrong_line_of_another_is_an_error(bin_: Path, tmp_path: Path) -> None:
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(RIGHT, encoding="utf-8")
    assert checked(right, bin_, tmp_path) == (0, [])
    wrong.write_text("\n".join(["from tunefleet import Client", "client = Client()", *WRONG]) + "\n", encoding="utf-8")
    status, said = checked(wrong, bin_, tmp_path)
    assert status == 1
    found = {(line.split(":")[1], line.rpartition("[")[2].rstrip("]")) for line in said if ": error: " in line}
    assert found == {(str(number), code) for number, code in enumerate(WRONG.values(), 3)}, said


def test_the_wheel_says_that_it_is_typed(bin_: Path) -> None:
    (marker,) = bin_.parent.glob("lib/python*/site-packages/tunefleet/py.typed")
    assert marker.is_file()
