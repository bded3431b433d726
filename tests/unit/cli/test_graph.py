"""`tunefleet graph`: what a document's tasks wait for, what they need and which results they use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.main import run

DIAMOND = """\
apiVersion: tunefleet/v1
metadata: {name: diamond}
spec:
  taskType: echo
  graph:
    nodes:
      - name: join
        dependsOn: [left]
        spec: {data: {items: ["${right.items[0].output}"]}}
      - name: prepare
      - name: left
        spec:
          data: {items: ["${prepare.items[0].output}", {node: prepare, path: "items[1].output"}]}
          resources: {hardware: {cpu: 2, gpu: {count: 2, type: A100, memory: 40960Mi}}}
      - name: right
        dependsOn: [prepare, task-17]
        spec: {condition: {node: prepare, field: items.0.output, equals: run-me}}
"""


@pytest.fixture
def document(tmp_path: Path) -> str:
    file = tmp_path / "diamond.yaml"
    file.write_text(DIAMOND)
    return str(file)


def test_the_drawing(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["graph", document]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines() == [
        "diamond: 4 tasks, 3 steps",
        "",
        "●    prepare  echo",
        "├─●  left     echo  2 GPUs A100 of 40Gi, 2 cores",
        "│ │  data.items.0 ← ${prepare.items[0].output}",
        "│ │  data.items.1 ← prepare.items[1].output",
        "◇ │  right    echo",
        "│ │  after prepare, task-17",
        "│ │  if prepare.items.0.output is 'run-me'",
        "╰─┤",
        "  ●  join     echo",
        "     after left, right",
        "     data.items.0 ← ${right.items[0].output}",
    ]


def test_the_same_for_programs(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["graph", document, "--json"]) == ExitCode.OK
    tasks = {task["name"]: task for task in json.loads(capsys.readouterr().out)["tasks"]}
    assert {name: task["step"] for name, task in tasks.items()} == {"prepare": 1, "left": 2, "right": 2, "join": 3}
    assert tasks["right"]["external"] == ["task-17"]
    assert tasks["right"]["condition"] == {"node": "prepare", "field": "items.0.output", "equals": "run-me"}
    assert tasks["join"]["references"] == [{"at": "data.items.0", "names": "right", "text": "${right.items[0].output}"}]


def test_a_circle_is_no_drawing(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["graph", document, "--set", "graph.nodes.prepare.dependsOn=[join]"]) == ExitCode.INVALID
    assert "these tasks depend on each other: " in capsys.readouterr().err
