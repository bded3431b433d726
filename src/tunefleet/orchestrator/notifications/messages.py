"""The texts of notifications. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from tunefleet.lifecycle.cycle import NEEDS_YOU
from tunefleet.observability.step_line import duration
from tunefleet.schemas.notify import ToldTask
from tunefleet.spec.options.notify import Occasion

_AGAIN: Final = "It will be retried."
# Waits below this are given in seconds only.
_SHORT_S: Final = 120.0
_REASONS: Final = {
    "bad_input": "an input named in its workflow file is not valid",
    "bug": "its code raised an error",
    "crashed": "it crashed",
    "delivery_failed": "its result could not be delivered",
    "disk_full": "the disk is full",
    "diverged": "its loss diverged",
    "killed": "it was killed",
    "network": "the network failed",
    "out_of_memory": "it ran out of memory",
    "stalled": "it wrote no output for too long",
    "timeout": "it took too long",
    "upstream_failed": "a task that it waited for failed",
    "worker_lost": "its worker does not respond",
}


@dataclass(frozen=True, slots=True)
class Happening:
    """What happened to a task.

    Args:
        silent_s: How long a stalled job has written nothing, in seconds.
    """

    occasion: Occasion
    task: ToldTask
    workflow: str
    kind: str
    silent_s: float | None = None

    @property
    def title(self) -> str:
        """Title of the notification."""
        task = self.task
        label = task.name if task.name == self.workflow else f"{self.workflow}: {task.name}"
        return f"{label} {_short(self)}"

    @property
    def text(self) -> str:
        """Text of the notification, in sentences."""
        task = self.task
        of = "" if task.name == self.workflow else f" of workflow {self.workflow}"
        sentences = [f"Run {task.name}{of} {_long(self)}"]
        if task.error and self.kind != "task.completed":
            sentences.append(_sentence(task.error))
        if self.kind == "task.retrying":
            sentences.append(_AGAIN)
        if task.runtime_s is not None:
            at = f" on {task.worker_id}" if task.worker_id else ""
            verb = "has run" if task.status == "running" else "ran"
            sentences.append(f"It {verb} for {duration(task.runtime_s)}{at}.")
        if task.loss is not None:
            sentences.append(f"Its last loss was {task.loss:.4g}, at step {task.step}.")
        return " ".join(sentences)

    @property
    def command(self) -> str:
        """Command that shows details."""
        return f"tunefleet {'logs' if self.kind == 'task.failed' else 'show'} {self.task.id}"


def worker_text(worker_id: str) -> tuple[str, str, str]:
    """Return title, text and command for a worker that is lost."""
    text = f"Worker {worker_id} no longer responds. Its runs are rescheduled, except those that wait for it."
    return f"worker {worker_id} is lost", text, "tunefleet workers ls"


def campaign_text(kind: str, name: str, data: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return title, text and command for an event of a campaign."""
    show = f"tunefleet campaign show {name}"
    match kind:
        case "campaign.promoted":
            version = data.get("version")
            why = f": {data['reason']}" if data.get("reason") else "."
            text = _sentence(f"Version {version} of model {name} is promoted{why}")
            return f"{name}: version {version} is promoted", text, f"tunefleet models show {name} {version}"
        case "campaign.budget":
            text = f"The next step of campaign {name} exceeds its budget. {_sentence(str(data['error']))}"
            return f"{name} has reached its budget", text, _command(str(data["error"])) or show
        case "campaign.held":
            text = f"Campaign {name} is held. {_sentence(str(data['reason']))}"
            return f"{name} is held", text, _command(str(data["reason"])) or f"tunefleet campaign retry {name}"
        case "campaign.uncancelled":
            task = f"The task of cycle {data['cycle']} of campaign {name}"
            text = f"{task} could not be cancelled, and may still cost money: {_sentence(str(data['error']))}"
            text = f"{text} This is retried; if it keeps failing, cancel the task at its provider."
            return f"{name}: a task could not be cancelled", text, f"tunefleet campaign logs {name}"
    where = f"Cycle {data.get('cycle')} of campaign {name} failed in its step {data.get('step')}"
    text = f"{where}: {_sentence(str(data.get('error')))} The campaign continues with its next cycle."
    return f"{name}: cycle {data.get('cycle')} failed", text, show


def _command(text: str) -> str | None:
    """Return the command in a text that asks the user to run one; None for another text."""
    return text.split("`", 2)[1] if text.startswith(NEEDS_YOU) else None


def spell_until(until: float, now: float) -> str:
    """Return a wait as text, with the end time if it is long: `42s`, or `12m, until 2026-01-02 03:04 UTC`."""
    left = until - now
    at = "" if left < _SHORT_S else f", until {datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M} UTC"
    return f"{duration(left)}{at}"


def _short(happening: Happening) -> str:
    task = happening.task
    match happening.kind:
        case "task.completed":
            return "is complete"
        case "task.failed":
            return "failed: out of memory" if task.reason == "out_of_memory" else "failed"
        case "task.paused":
            return "is paused"
        case "task.retrying" if task.reason == "out_of_memory":
            return "ran out of memory, retrying"
        case "task.retrying" if task.reason == "stalled":
            return "stalled, retrying"
        case "task.stalled":
            return "is stalled"
    return "lost its worker"


def _long(happening: Happening) -> str:
    task = happening.task
    why = _REASONS.get(task.reason or "", (task.reason or "").replace("_", " "))
    match happening.kind:
        case "task.completed":
            return "was stopped early, and is complete." if task.reason == "stopped_early" else "is complete."
        case "task.failed":
            return f"failed: {why}." if why else "failed."
        case "task.paused":
            return "is paused."
        case "task.stalled":
            for_ = "" if happening.silent_s is None else f" Its last output was {duration(happening.silent_s)} ago."
            return f"has stopped writing output.{for_}"
        case "worker.lost":
            return f"lost its worker: {task.worker_id} does not respond. The run waits for that worker, as "
            "specified in its workflow file."
    return f"was interrupted: {why}."


def _sentence(error: str) -> str:
    text = error.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
