"""What each page takes for granted, and which of them take long."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from tests.documents.blocks import ROOT, blocks
from tests.documents.reader import Reader, Scene

HUB_MODEL: Final = "Qwen/Qwen2.5-0.5B-Instruct"
CHAT: Final = "{% for m in messages %}{{ m.role }}: {% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}"
_ECHO: Final = (
    "apiVersion: tunefleet/v1\nmetadata: {name: hello}\nspec: {taskType: echo, data: {type: list, items: [a]}}\n"
)
_TRAINING: Final = """\
apiVersion: tunefleet/v1
metadata: {name: run}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data:
    path: builtin:gsm8k
    prompt_column: question
    response_column: answer
    max_samples: 400
    eval: {split: test, max_samples: 8}
  lora: {r: 4, target_modules: all-linear}
  training: {max_steps: 6, batch_size: 2, learning_rate: 1.0e-3, max_seq_length: 128, save_steps: 3}
"""
_PAIRS: Final = "".join(json.dumps({"question": f"{n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(60))
_CHATS: Final = "".join(
    json.dumps({"messages": [{"role": "user", "content": f"{n} + 1?"}, {"role": "assistant", "content": str(n + 1)}]})
    + "\n"
    for n in range(24)
)
_PATIENT: Final = _TRAINING.replace("max_steps: 6", "max_steps: 100000, logging_steps: 1").replace(
    "save_steps: 3", "save_steps: 20, eval_strategy: steps, eval_steps: 9000"
)
_UNPLACED: Final = _TRAINING.replace("  lora:", "  resources: {tags: [nobody-has-this]}\n  lora:")
"""A training that no worker takes, for pages that only speak of it."""
_PREPARING: Final = """\
apiVersion: tunefleet/v1
metadata: {name: prepare}
spec:
  taskType: data
  sources: [{path: ./mine.jsonl}]
  steps: [{convert: messages}, {shuffle: {seed: 1}}]
"""
_EVALUATION: Final = f"""\
apiVersion: tunefleet/v1
metadata: {{name: measure}}
spec:
  taskType: evaluate
  model: {{source: {{identifier: ./{HUB_MODEL}}}}}
  evaluations:
    - type: loss
      data: {{path: builtin:gsm8k, split: "test[:8]", prompt_column: question, response_column: answer}}
"""
_BROKEN: Final = """\
apiVersion: tunefleet/v1
metadata: {name: broken}
spec:
  taskType: echo
  graph:
    nodes:
      - {name: first, spec: {data: {type: list, items: [a]}}}
      - {name: second, spec: {data: {type: list, items: ["${first.result.items[7].output}"]}}}
      - {name: third, dependsOn: [second], spec: {data: {type: list, items: [b]}}}
"""


def _task(kind: str = "task") -> Callable[[Reader], str]:
    return lambda reader: reader.last(kind)


def _server_key(name: str) -> Callable[[Reader], str]:
    return lambda reader: (reader.home / ".tunefleet/data/keys" / f"{name}.key").read_text().strip()


def hub_model(reader: Reader) -> None:
    """Put a small model with a chat template where the page names one of a hub, which is not asked in tests."""
    folder = reader.here / HUB_MODEL
    reader.have("src/tunefleet/workloads/assets/models/gsm8k-llama-2m")
    folder.parent.mkdir(parents=True)
    (reader.here / "src/tunefleet/workloads/assets/models/gsm8k-llama-2m").rename(folder)
    (folder / "chat_template.jinja").write_text(CHAT, encoding="utf-8")


def _failed_pipeline(reader: Reader) -> None:
    reader.save("broken.yaml", _BROKEN)
    reader.type("tunefleet submit broken.yaml", Scene(), "before")
    workflow = reader.last("wf")
    reader.until(f"tunefleet show {workflow} --json", '"status": "failed"')
    reader.type(f"tunefleet show {workflow}", Scene(), "before")


def _campaign(reader: Reader) -> None:
    reader.save("config.yaml", (ROOT / "examples/campaign/config.yaml").read_text(encoding="utf-8"))


_SUBMIT_ECHO: Final = ("tunefleet submit echo.yaml --wait",)
_LOGIN: Final = {"TUNEFLEET_URL": lambda reader: reader.url, "TUNEFLEET_KEY": _server_key("admin")}

FLEET: Final[dict[str, Scene]] = {
    "docs/how-to/agent-behind-nat.md": Scene(values={"tf_…": _server_key("worker")}, environment={"PORT": "0"}),
    "docs/how-to/notifications.md": Scene(values={"RUN": _task()}, files={"echo.yaml": _ECHO}, before=_SUBMIT_ECHO),
    "docs/how-to/files-and-artifacts.md": Scene(files={"rows.jsonl": _CHATS}),
    "docs/how-to/deploy.md": Scene(prepare=lambda reader: reader.have("deploy")),
    "docs/how-to/environments.md": Scene(),
    "docs/how-to/federated-lora.md": Scene(
        values={
            "FEDERATION": _task("fed"),
            "ID": _task("fed"),
            "--replace": "--replace --yes",
            "cancel": "cancel --yes",
        }
    ),
    "docs/how-to/prepare-data.md": Scene(files={"prepare.yaml": _PREPARING, "mine.jsonl": _PAIRS}),
    "docs/how-to/tls.md": Scene(),
    "docs/how-to/debug-a-failed-workflow.md": Scene(
        values={"RUN": _task(), "WORKFLOW": _task("wf")},
        environment=_LOGIN,
        prepare=_failed_pipeline,
    ),
    "docs/how-to/secure-redis.md": Scene(
        values={"/etc/redis": ".", "…": "secret" * 6}, prepare=lambda reader: reader.have("deploy")
    ),
    "docs/how-to/scheduling.md": Scene(
        values={"task-3f9a": _task()}, files={"sft.yaml": _TRAINING, "echo.yaml": _ECHO}, before=_SUBMIT_ECHO
    ),
    "docs/how-to/projects-and-quotas.md": Scene(),
    "docs/how-to/train-on-your-own-data.md": Scene(files={"run.yaml": _TRAINING}),
    "docs/how-to/operate-a-campaign.md": Scene(values={"daily": "gsm8k"}, prepare=_campaign),
    "docs/how-to/upgrade.md": Scene(),
    "docs/how-to/monitoring.md": Scene(),
    "docs/how-to/workflows.md": Scene(values={"RUN": _task()}, files={"run.yaml": _UNPLACED}),
    "examples/federated/README.md": Scene(),
}
"""Pages that are read beside a server that runs already, with one worker."""

CUT: Final = frozenset({"docs/how-to/files-and-artifacts.md"})
"""Those of them that `make test` reads, with the tutorial; `make proofs AREA=docs` reads all pages."""

ALONE: Final[dict[str, Scene]] = {
    "docs/tutorial/first-fine-tune.md": Scene(values={"RUN": _task()}),
}
"""Pages whose reader starts with nothing."""


def _compared(reader: Reader) -> None:
    hub_model(reader)
    for name in ("one", "two"):
        reader.save(f"{name}.yaml", _EVALUATION)
        reader.type(f"tunefleet submit {name}.yaml --wait", Scene(), "before")


def _paused_at_a_checkpoint(reader: Reader) -> None:
    reader.save("long.yaml", _PATIENT)
    reader.type("tunefleet submit long.yaml", Scene(), "before")
    task = reader.last("task")
    reader.until(f"tunefleet checkpoints {task}", "KiB")
    reader.type(f"tunefleet cancel {task}", Scene(), "before")


def _first(kind: str) -> Callable[[Reader], str]:
    return lambda reader: reader.seen[kind][0]


LONG: Final[dict[str, Scene]] = {
    "README.md": Scene(values={"RUN": _task(), HUB_MODEL: f"./{HUB_MODEL}"}, prepare=lambda reader: _readme(reader)),
    "docs/how-to/chat-with-a-model.md": Scene(
        values={"task-3f9a": _task(), "Qwen/Qwen3-0.6B": f"./{HUB_MODEL}"},
        files={"run.yaml": _TRAINING},
        before=("tunefleet submit run.yaml --wait",),
        prepare=hub_model,
    ),
    "docs/how-to/evaluate-a-model.md": Scene(
        values={"task-3f9a": _first("task"), "task-81c2": _task()}, prepare=_compared
    ),
    "docs/how-to/merge-and-export.md": Scene(
        values={"task-3f9a": _first("task")},
        files={"run.yaml": _TRAINING},
        before=("tunefleet submit run.yaml --wait",),
    ),
    "docs/how-to/pause-and-resume.md": Scene(
        values={"RUN": _first("task")},
        files={"run.yaml": _PATIENT},
        before=("tunefleet submit run.yaml",),
        prepare=lambda reader: reader.until(f"tunefleet checkpoints {reader.last('task')}", "KiB"),
    ),
    "docs/how-to/resume-after-a-crash.md": Scene(values={"RUN": _first("task")}, prepare=_paused_at_a_checkpoint),
    "docs/how-to/run-custom-code.md": Scene(
        environment={
            "ORCHESTRATOR_BASE_URL": lambda reader: reader.url,
            "TUNEFLEET_WORKER_KEY": _server_key("worker"),
            "RESULTS_DIR": "results",
            "WORKER_ID": "runs-code",
        }
    ),
    "docs/how-to/load-test.md": Scene(values={"KEY": _server_key("admin")}),
    "docs/how-to/python-client.md": Scene(files={"run.yaml": _TRAINING}),
}
"""Further pages beside a server, with trainings."""


def _readme(reader: Reader) -> None:
    """The document stands below the commands that read it."""
    hub_model(reader)
    reader.save("conversations.jsonl", _CHATS)
    (document,) = (block for block in blocks(ROOT / "README.md") if block.note("file"))
    reader.save("my-run.yaml", document.text.replace("Qwen/", "./Qwen/"))


def _own_script(reader: Reader) -> None:
    """Save a script of the reader's own, with a training that is not over before the page is."""
    script = (ROOT / "examples/control/complete.py").read_text(encoding="utf-8")
    for old, new in (
        ('job_id="complete"', 'job_id="my-run"'),
        ("default=2000", "default=100_000"),
        ('parser.add_argument("--debug"', 'parser.add_argument("--lr")\n    parser.add_argument("--debug"'),
        ("callbacks=[control]", "callbacks=[]"),
    ):
        assert old in script, f"the example has no {old}"
        script = script.replace(old, new)
    reader.save("train.py", script)


def _workflow_examples(reader: Reader) -> None:
    reader.have("examples/workflows")
    reader.environment["WORKER_ID"] = "lab"


def _of_stage(name: str) -> Callable[[Reader], str]:
    """Return the id of the task of a stage, as the last table with it had it."""
    return lambda reader: re.findall(rf"^{re.escape(name)} +(task-\w+)", reader.history, re.MULTILINE)[-1]


LONG_ALONE: Final[dict[str, Scene]] = {
    "docs/how-to/share-a-gpu.md": Scene(),
    "docs/how-to/run-a-campaign.md": Scene(prepare=lambda reader: reader.have("examples/campaign")),
    "docs/how-to/run-a-server-and-workers.md": Scene(
        values={
            "/srv/tunefleet": "srv",
            "/data/tunefleet": "results",
            "tf_…": lambda reader: (reader.here / "srv/keys/worker.key").read_text().strip(),
            "WORKER": "lab-3",
            "KEY": lambda reader: f"{reader.last('key')} --yes",
            "RUN": lambda reader: reader.submitted("echo.yaml"),
        },
        files={"echo.yaml": _ECHO},
        environment={"WORKER_ID": "lab-3"},
    ),
    "docs/how-to/control-a-script.md": Scene(prepare=_own_script),
    "examples/control/README.md": Scene(prepare=lambda reader: reader.have("examples/control")),
    "examples/workflows/README.md": Scene(
        values={
            "task-192e312a75ce": _of_stage("gsm8k-stage"),
            "task-171b0c0fdab9": _of_stage("second-stage"),
            "task-eb40d342030c": _of_stage("compare"),
            "task-d48e993bd149": _of_stage("answers"),
        },
        prepare=_workflow_examples,
    ),
}
"""Further pages whose reader starts with nothing."""

WITH_SERVICES: Final = ("docs/how-to/postgresql.md",)
"""Pages that need a database; each has a test of its own."""

ELSEWHERE: Final = {
    "docs/how-to/join-a-worker.md": "tests/integration/redis/test_guide.py",
}
"""Pages that are not followed word by word, and where their commands are run; what they show is held statically."""
