"""`taskType: command` and `taskType: python` through a real worker: steered, killed, cut off, and what they leave."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.libraries import required

if TYPE_CHECKING:
    from tests.integration.kinds.conftest import Bench

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "workflows"
STEPS = 24


def test_a_script_is_paused_resumed_killed_and_leaves_what_it_was_asked_for(bench: Bench) -> None:
    required("transformers")
    (task_id,) = bench.submit(EXAMPLES / "command.yaml", **{"retry.backoff_s": 0}).values()
    folder = bench.folder(task_id)
    diary = folder / "work" / "steps.txt"

    def whole() -> int:
        return len(list((folder / "work" / "out").glob("checkpoint-*/manifest.json")))

    bench.until(whole, task_id)
    bench.client.tasks.pause(task_id)
    bench.until(lambda: bench.client.tasks.get(task_id).status == "paused", task_id)
    steps, before = diary.read_text().split(), whole()
    bench.client.tasks.resume(task_id)
    bench.until(lambda: whole() > before, task_id)
    _child_of(folder).kill()
    found = bench.result(task_id)

    assert found["trained"] is True
    assert (found["steps"], found["exit_code"]) == (STEPS, 0)
    assert found["trainings"][0]["output_dir"] == "work/out"
    assert found["trainings"][0]["resumed_from_step"] >= 8
    taken = diary.read_text().split()
    assert taken[: len(steps)] == steps
    assert int(taken[len(steps)]) == int(steps[-1]) + 1, "the resume took no step twice"
    assert int(taken[-1]) == STEPS
    assert len(taken) < STEPS + 10, "after the kill it went on from a checkpoint"
    files = bench.files(task_id)
    assert {"summary", "final_model/model.safetensors"} <= files.keys()
    assert found["outputs"]["summary"]["sha256"] == files["summary"].sha256
    assert found["outputs"]["summary"]["url"]
    assert json.loads((folder / "work" / "summary.json").read_text())["said"] == "hello"


def test_what_is_wrong_with_a_command_is_said(bench: Bench) -> None:
    assert "Program no-such-program not found" in bench.error({"taskType": "command", "command": ["no-such-program"]})
    lost = "'lost' if 'HF_TOKEN' not in os.environ else 'a token'"
    code = f"import os, sys; sys.stderr.write('about to fail\\n'); {{}}[{lost}]"
    said = bench.error({"taskType": "command", "command": ["python", "-c", code]})
    assert "python ended with exit code 1: KeyError: 'lost'" in said
    said = bench.error({"taskType": "command", "command": ["python", "-c", ""], "outputs": {"mine": "a/b.txt"}})
    assert "spec.outputs.mine: the command did not write a/b.txt" in said


def test_a_function_gets_the_results_before_it_and_hands_its_own_on(bench: Bench) -> None:
    ids = bench.submit(EXAMPLES / "python.yaml")
    report = bench.result(ids["report"])
    assert report["items"][0]["output"] == "3 texts have 2.0 words on average"
    score = bench.result(ids["score"])
    assert (score["rows"], score["metrics"], score["run"]["network"]) == (3, {"mean_words": 2.0}, "none")
    files = bench.files(ids["score"])
    assert {"result.json", "metrics.json", "output/words.json"} <= files.keys()
    inputs = bench.folder(ids["score"]) / "inputs" / "upstream" / "prepare"
    assert json.loads((inputs / "results.json").read_text())["task_id"] == ids["prepare"]


NOSY = """
import json, os, socket
def main(inputs):
    def reach(address):
        try:
            socket.create_connection(address, 5).close()
        except OSError as error:
            return str(error)
        return "reached"
    return {"reach": reach(ADDRESS), "variables": sorted(os.environ), "password": os.environ.get("PASSWORD")}
"""


def test_without_network_the_code_reaches_nothing_and_sees_no_key(bench: Bench) -> None:
    server = bench.fleet.url.removeprefix("http://").split(":")
    code = NOSY.replace("ADDRESS", repr((server[0], int(server[1]))))
    task = {"taskType": "python", "code": code, "env": {"PASSWORD": "${secret:PASSWORD}"}}
    alone = bench.result(bench.submit(task)["task"])
    assert "unreachable" in alone["reach"]
    assert alone["password"] == "${secret:PASSWORD}", "what came back has the name for the value"
    assert not [name for name in alone["variables"] if name.startswith(("TUNEFLEET_", "ORCHESTRATOR_", "AWS_", "HF_T"))]
    assert bench.result(bench.submit({**task, "network": "bridge"})["task"])["reach"] == "reached"


@pytest.mark.parametrize(
    ("code", "more", "said"),
    [
        ("def main(inputs):\n    return {}['lost']", {}, "KeyError: 'lost' (line 2 of the code)"),
        ("def main():\n    while True: pass", {"timeoutSeconds": 1}, "longer than timeoutSeconds (1 s)"),
        ("def main():\n    return {'metrics': {'a': 'b'}}", {"emits": ["a"]}, "the metric 'a' is 'b'"),
        (
            "def main():\n    open('output/x', 'wb').write(bytes(5000))",
            {"pythonOutput": {"maxBytes": 3000}},
            "pythonOutput.maxBytes allows 3,000",
        ),
    ],
    ids=["raises", "too-long", "no-number", "too-much"],
)
def test_what_is_wrong_with_a_function_is_said(bench: Bench, code: str, more: dict[str, Any], said: str) -> None:
    assert said in bench.error({"taskType": "python", "code": code, "retry": {"max_attempts": 3}, **more})


def test_a_killed_function_begins_again(bench: Bench, tmp_path: Path) -> None:
    began = tmp_path / "began"
    code = f"""
import pathlib, time
def main():
    began = pathlib.Path({str(began)!r})
    first = not began.exists()
    with began.open("a") as file:
        file.write("x")
    while first:
        time.sleep(0.1)
    return {{"again": len(began.read_text())}}
"""
    task_id = bench.submit({"taskType": "python", "code": code, "retry": {"max_attempts": 2, "backoff_s": 0}})["task"]
    bench.until(began.exists, task_id)
    _child_of(bench.folder(task_id)).parent().kill()
    assert bench.result(task_id)["again"] == 2


WHEEL = "tiny_gift-1.0-py3-none-any.whl"


def test_packages_are_installed_beside_the_workers_own(bench: Bench, tmp_path: Path) -> None:
    wheel = tmp_path / WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_gift.py", "VALUE = 7\n")
        archive.writestr("tiny_gift-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-gift\nVersion: 1.0\n")
        tag = "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr("tiny_gift-1.0.dist-info/WHEEL", tag)
        archive.writestr("tiny_gift-1.0.dist-info/RECORD", "")
    code = "import tiny_gift, orjson\ndef main():\n    return {'value': tiny_gift.VALUE, 'there': orjson.__name__}"
    task = {"taskType": "python", "code": code, "network": "bridge", "requirements": [f"tiny-gift @ {wheel.as_uri()}"]}
    found = bench.result(bench.submit(task)["task"])
    assert (found["value"], found["there"]) == (7, "orjson")
    assert "cannot be installed" in bench.error({**task, "requirements": ["tiny-gift @ file:///nowhere/x.whl"]})


def _child_of(folder: Path) -> psutil.Process:
    """Return the one process that the program of a job has started."""
    program = psutil.Process(json.loads((folder / "process.json").read_text())["pid"])
    (child,) = program.children()
    return child
