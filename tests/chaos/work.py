"""What clients ask of the world in each round, and what they were told of it."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any, Final

from tests.chaos.check_results import PARTS
from tests.chaos.ledger import Ledger
from tunefleet.client import Client
from tunefleet.errors import TunefleetError
from tunefleet.spec.documents.campaign_document import CampaignSpec

STEPS: Final = 40
LINES: Final = 40
SYNC: Final = 8
CAMPAIGN: Final = "chaos"
MODEL: Final = "builtin:gsm8k-llama-2m"
_HEAD: Final = "apiVersion: tunefleet/v1\nkind: Workflow\nmetadata: {{name: {name}}}\nspec:\n"
_ECHO: Final = (
    _HEAD + "  taskType: echo\n  retry: {{max_attempts: 9, backoff_s: 0}}\n  data: {{type: list, items: [{name}]}}\n"
)
_SECRETIVE: Final = (
    _HEAD
    + """  taskType: echo
  retry: {{max_attempts: 9, backoff_s: 0}}
  data: {{type: list, items: ["{name}", "key ${{secret:CHAOS}}"]}}
"""
)
_CHAIN: Final = (
    _HEAD
    + """  taskType: echo
  retry: {{max_attempts: 9, backoff_s: 0}}
  graph:
    nodes:
      - {{name: first, spec: {{data: {{type: list, items: [{name}]}}}}}}
      - name: second
        dependsOn: [first]
        spec: {{data: {{type: list, items: ["${{first.result.items[0].output}}"]}}}}
"""
)
_COUNTED: Final = (
    _HEAD
    + """  taskType: command
  retry: {{max_attempts: 9, backoff_s: 0}}
  command:
    - sh
    - -c
    - |
      echo begin >> {file}
      i=1; while [ $i -le {lines} ]; do echo "line $i"; sleep 0.05; i=$((i+1)); done
      echo end >> {file}
"""
)
_SLEEPS: Final = _HEAD + "  taskType: command\n  retry: {{max_attempts: 9, backoff_s: 0}}\n  command: [sleep, '600']\n"
_TRAINS: Final = (
    _HEAD
    + """  taskType: lora_sft
  model: {{source: {{identifier: "{model}"}}}}
  data: {{path: "builtin:gsm8k", prompt_column: question, response_column: answer, max_samples: 64}}
  lora: {{r: 2, alpha: 4, target_modules: [q_proj]}}
  training:
    max_steps: {steps}
    batch_size: 2
    max_seq_length: 96
    logging_steps: 1
    save_steps: 5
    learning_rate: 1e-3
    seed: 0
  retry: {{max_attempts: 9, backoff_s: 0}}
{more}"""
)
_FEDERATED: Final = "  federation: {{workers: {parts}, sync_every_steps: {sync}, deadline_s: 60}}\n"


class Work:
    """One round's work.

    Args:
        client: Asks the server, and rides out its absence.
        ledger: Gets what was acknowledged.
        folder: For files that tasks write, and that are uploaded.
        number: Of the round.
        seed: Of the run.
        quick: Whether less is asked for: one training in a round, and a federated one in each eighth.
    """

    def __init__(
        self, client: Client, ledger: Ledger, folder: Path, number: int, seed: int, *, quick: bool = False
    ) -> None:
        self.client, self.ledger, self.folder, self.number = client, ledger, folder, number
        self.quick = quick
        self._dice = random.Random(f"{seed}:work:{number}")

    def submit(self) -> None:
        """Ask for everything, one after the other."""
        odd = bool(self.number % 2)
        for index in range(3):
            self._submit(f"echo-{index}", _ECHO, expects="items")
        if odd or not self.quick:
            self._train("train-0")
        self._submit("secretive", _SECRETIVE, expects="ended")
        self._submit("chain", _CHAIN, expects="chain")
        file = self.folder / f"counted-{self.number}"
        self._submit("counted", _COUNTED, expects="counted", file=str(file), lines=LINES)
        if not odd or not self.quick:
            self._train("train-1")
        self._push()
        if not self.quick or self.number % 8 == 7:
            self._train("federated", more=_FEDERATED.format(sync=SYNC, parts=PARTS))
        self._submit("cancelled", _SLEEPS, expects="cancelled")

    def steer(self) -> None:
        """Cancel, pause, resume and command what was submitted."""
        for told in self.ledger.all("workflow"):
            if told.facts["round"] != self.number:
                continue
            (*_, task_id) = told.facts["tasks"]
            if told.facts["name"] == "cancelled":
                with self.ledger.asking("cancel", task_id):
                    self.client.tasks.cancel(task_id)
                    self.ledger.note("cancel", task_id)
            if told.facts["name"] == "train-0":
                self._command(task_id)
            if told.facts["name"] == "train-1":
                self._pause(task_id)

    def _train(self, name: str, more: str = "") -> None:
        expects = "federated" if more else "trained"
        self._submit(name, _TRAINS, expects=expects, model=MODEL, steps=STEPS, more=more)

    def _submit(self, name: str, text: str, *, expects: str, **filled: Any) -> None:
        known_as = f"{name}-{self.number}"
        document = text.format(name=known_as, **filled)
        with self.ledger.asking("workflow", known_as):
            flow = self.client.submit(document, idempotency_key=known_as).workflow
            facts = {"name": name, "round": self.number, "expects": expects, "key": known_as, **filled}
            self.ledger.note("workflow", flow.id, tasks=[task.id for task in flow.tasks], **facts)

    def _push(self) -> None:
        content = self._dice.randbytes(1 << 18)
        file = self.folder / f"pushed-{self.number}"
        file.write_bytes(content)
        with self.ledger.asking("artifact", file.name):
            made = self.client.artifacts.push(file)
            self.ledger.note("artifact", made.id, sha256=hashlib.sha256(content).hexdigest())

    def _command(self, task_id: str) -> None:
        try:
            made = self.client.tasks.command(task_id, "save_checkpoint", command_id=f"save-{self.number}")
        except TunefleetError as error:
            # It does not run yet, or no more: then nothing was acknowledged.
            self.ledger.unknown.append(("command", task_id, str(error)))
            return
        self.ledger.note("command", made.id, task=task_id)

    def _pause(self, task_id: str) -> None:
        try:
            self.client.tasks.pause(task_id)
        except TunefleetError as error:
            self.ledger.unknown.append(("pause", task_id, str(error)))
            return
        self.ledger.note("pause", task_id)


def campaign(folder: Path) -> CampaignSpec:
    """Return a campaign that trains again and again, a small chunk each time."""
    return CampaignSpec.model_validate({
        "enabled": True,
        "provider": "local",
        "model_repo": MODEL,
        "datasets": [
            {"path": "builtin:gsm8k", "max_rows": 96, "field_instruction": "question", "field_output": "answer"}
        ],
        "samples_per_training": 16,
        "final_test_size": 0.1,
        "run_intervals": {"min_days": 0, "max_days": 0, "min_hours": 0.001, "max_hours": 0.001},
        "lora": {"r": 2, "alpha": 4, "dropout": 0.0, "target_modules": ["q_proj"]},
        "training": {"max_steps": 4, "batch_size": 2, "max_seq_length": 96, "save_strategy": "no"},
        "evaluate": {"max_seq_length": 96},
        "publish": {"to": str(folder / "published-{cycle}")},
        "budget": {"max_tasks_per_day": 100000},
    })  # fmt: skip
