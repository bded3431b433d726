"""The page of all errors: every code and every reason of a failure that the code has, each with its resolution.

The codes are read from the code; an error without a resolution here, or the reverse, stops the writing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import httpx

from tunefleet import errors
from tunefleet.api.problem_details import STATUSES
from tunefleet.cli.exit_codes import exit_code_of
from tunefleet.client.problems import exception_of
from tunefleet.lifecycle.task import OUTCOMES, TaskStatus
from tunefleet.schemas.api import PROBLEM_PREFIX, Problem

SOURCES = Path(__file__).resolve().parent.parent / "src/tunefleet"

_HEAD = """# Errors

<!-- Written by `make docs` from the code and from scripts/error_reference.py. -->

An error is one sentence that names the cause, usually with a second one that says how to resolve it. Its
code is for programs: the last part of `type` in an answer of the [HTTP API](http-api.md), and `error` in what a
command prints with `--json`. How a command ends on it is its [exit code](exit-codes.md).
"""

_ANSWERS: Final = {
    "method_not_allowed": "The path knows other methods.",
    "body_stalled": "Nothing of a request's body came for 120 seconds.",
    "not_acceptable": "`/metrics` was asked for something other than JSON.",
    "unsupported_media_type": "The body is of another type.",
    "range_invalid": "The range that was asked for is not in the file.",
    "request_invalid": "The body or a parameter is wrong.",
    "internal": "A fault of the server.",
    "error": "An error without a code of its own.",
}
"""What is an answer of the server and no class of its own, or means something else there."""

_LOOK: Final = "The sentence says what is missing; give that, or another one."
WAYS_OUT: Final = {
    "spec_invalid": "Fix each fault at its line; `tunefleet validate FILE` lists them and stores nothing.",
    "request_invalid": "Send what the route's schema asks for; `faults` names each field.",
    "input_invalid": _LOOK,
    "data_invalid": "Fix the dataset or name another; `tunefleet data try` shows what a dataset gives.",
    "model_invalid": "Name a model that the worker can reach, whole and with its tokenizer.",
    "reference_invalid": "Look at the result that is referred to: `tunefleet show TASK --json`.",
    "adapter_refused": "Train with the same base model and the same `lora` block as the others; the tensor is named.",
    "artifact_invalid": "Send the files again; what was sent was damaged, or leads out of its folder.",
    "unauthenticated": "Give a key that is not revoked: `tunefleet login`, or `TUNEFLEET_KEY`.",
    "forbidden": "Use a key of the role that is named, or ask an admin of the project.",
    "not_found": "Look the id up: `tunefleet ls`. What the key may not see is not found either.",
    "method_not_allowed": "Use a method of [the routes](http-api.md#routes).",
    "not_acceptable": "Ask for JSON.",
    "conflict": "Look at its state and wait, or change that first; the sentence names what is in the way.",
    "illegal_transition": "Look at its status: `tunefleet show TASK`. [Lifecycle](lifecycle.md) has what may follow.",
    "offset_conflict": "Go on at `cursor`.",
    "gone": "Do not ask again; the sentence says what became of it.",
    "body_stalled": "Send it again; an upload goes on where it was cut.",
    "too_large": "Send less, or raise the limit that is named in [Configuration](configuration.md).",
    "unsupported_media_type": "Send the `Content-Type` that [the route](http-api.md#routes) takes.",
    "over_quota": "Remove unused data, or ask for more: [Projects and quotas](../how-to/projects-and-quotas.md).",
    "too_many": "Wait for the seconds of `Retry-After`.",
    "range_invalid": "Ask for bytes within the file's size.",
    "error": "Read the sentence; the log of the process that says it has more.",
    "internal": "Read the server's log; please report it.",
    "store_unusable": "Look at the database or the data folder: `tunefleet doctor`.",
    "unreachable": "See that it runs and can be reached from here: `tunefleet doctor`.",
    "machine": "Give this machine what is named; `tunefleet doctor` lists what else it lacks.",
    "step_failed": "It is retried automatically; `tunefleet campaign logs` has why it failed.",
    "cycle_failed": "Fix what is named, then `tunefleet campaign retry`.",
    "order_failed": "Read what the provider says in `tunefleet campaign logs`, then `tunefleet campaign retry`.",
    "misconfigured": "Fix the campaign's file or the setting that is named, then resume it.",
    "diverged": "Lower `training.learning_rate`, or set `on_nan: rollback`.",
    "merge_failed": "The sentence says how the program that merged has ended.",
    "not_now": "Ask for a job that there is, in a state that allows it.",
    "delivery_failed": "See [a delivery that has failed](../how-to/debug-a-failed-workflow.md"
    "#a-delivery-is-held-up-or-has-failed).",
    "result_missing": "Write the result as JSON: [A task type of your own](../how-to/custom-task-types.md).",
    "still_runs": "Give the same command again when the merge has ended.",
    "not_tracked": "See that the tracker answers, and that its key is right.",
}
"""Code → what to do."""

_OF_THE_PROGRAM: Final = "Read the traceback: `tunefleet show TASK`, and `tunefleet logs TASK`."
REASONS: Final = {
    "upstream_failed": "Fix the task that the error names, then `tunefleet retry`.",
    "bad_input": "Change what the error names, and submit again; the same document fails again.",
    "bug": _OF_THE_PROGRAM,
    "out_of_memory": "Use a smaller `batch_size` or `max_seq_length`, or a worker with more memory.",
    "disk_full": "Make room on the worker, then `tunefleet retry`.",
    "network": "See that the worker reaches what the error names, then `tunefleet retry`.",
    "killed": "See who sent the signal; without a sender it was mostly the system, out of memory.",
    "crashed": _OF_THE_PROGRAM,
    "timeout": "Raise `limits.max_runtime_s`, or let it do less.",
    "stalled": "Read where it hangs in `tunefleet logs TASK`; raise `limits.stall_after_s` if it was only slow.",
    "diverged": "Lower `training.learning_rate`, or set `on_nan: rollback`.",
    "delivery_failed": "Fix the destination: [Debug a failed pipeline](../how-to/debug-a-failed-workflow.md"
    "#a-delivery-is-held-up-or-has-failed).",
    "worker_lost": "Look at the worker: its log, and `tunefleet workers show`; then `tunefleet retry`.",
    "no_nodes": "Read what the cluster says in the error: [Slurm](../how-to/slurm.md), [Ray](../how-to/ray.md).",
}
"""Reason of a task that has failed → what to do."""


class Kind(NamedTuple):
    """One class of errors with a code of its own.

    Args:
        name: Of the class.
        code: Its code.
        meaning: The first sentence of its docstring.
        protocol: Whether the code is one of the agents' protocol.
    """

    name: str
    code: str
    meaning: str
    protocol: bool


def kinds() -> Iterator[Kind]:
    """Yield every class of errors that the code gives a code."""
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "code" not in text or "class " not in text:
            continue
        for each in ast.walk(ast.parse(text)):
            if isinstance(each, ast.ClassDef) and each.bases:
                yield from _codes(each)


def _codes(kind: ast.ClassDef) -> Iterator[Kind]:
    for line in kind.body:
        target = line.target if isinstance(line, ast.AnnAssign) else getattr(line, "targets", [None])[0]
        value = getattr(line, "value", None)
        if (
            isinstance(target, ast.Name)
            and target.id in {"code", "protocol_code"}
            and isinstance(value, ast.Constant)
            and isinstance(value.value, str)
        ):
            meaning = (ast.get_docstring(kind) or "").partition("\n")[0]
            yield Kind(kind.name, value.value, meaning, target.id == "protocol_code")


def _all_there(what: str, there: set[str], described: Mapping[str, str]) -> None:
    if missing := there - described.keys():
        raise SystemExit(f"scripts/error_reference.py has no resolution for the {what} {', '.join(sorted(missing))}.")
    if more := described.keys() - there:
        raise SystemExit(f"scripts/error_reference.py has {what} that are no more: {', '.join(sorted(more))}.")


def _exit_code(code: str, status: int) -> int:
    """Return how a command ends that gets this answer, by the translator of the commands themselves."""
    answer = Problem(type=PROBLEM_PREFIX + code, title="", status=status, detail="It is so.", cursor=0)
    response = httpx.Response(status, headers={"Retry-After": "1"}, request=httpx.Request("GET", "http://localhost"))
    return exit_code_of(exception_of(response, answer.model_dump_json().encode())).value


def page() -> str:
    """Return the text of `docs/reference/errors.md`.

    Raises:
        SystemExit: A code or reason has no resolution, or a resolution belongs to none.
    """
    found = [kind for kind in kinds() if not kind.protocol]
    failures = {str(reason) for reason, outcome in OUTCOMES.items() if outcome.status is TaskStatus.FAILED}
    _all_there("codes", {kind.code for kind in found} | set(STATUSES), WAYS_OUT)
    _all_there("reasons", failures, REASONS)
    ours = {kind.code: kind for kind in found if hasattr(errors, kind.name)}
    lines = [_HEAD, "## Codes of answers and commands\n"]
    lines += ["| Code | HTTP | Exit code | Means | Resolution |", "|---|---|---|---|---|"]
    for code, status in STATUSES.items():
        kind = ours.get(code)
        meaning = _ANSWERS.get(code) or (kind.meaning if kind else "")
        lines.append(f"| `{code}` | {status} | {_exit_code(code, status)} | {meaning} | {WAYS_OUT[code]} |")
    lines += ["\n## Codes within a task, a campaign or the agent\n", "| Code | Means | Resolution |", "|---|---|---|"]
    lines += [
        f"| `{kind.code}` | {kind.meaning} | {WAYS_OUT[kind.code]} |" for kind in found if kind.code not in STATUSES
    ]
    lines += ["\n## Codes of the agents' protocol\n", "An agent that claims a job may be notified one of these.\n"]
    lines += ["| Code | Means |", "|---|---|"]
    lines += [f"| `{kind.code}` | {kind.meaning} |" for kind in kinds() if kind.protocol]
    lines += ["\n## Why a task has failed\n"]
    lines += [
        "[Lifecycle](lifecycle.md#reasons) says what each reason means, and which are tried again by themselves.\n"
    ]
    lines += ["| Reason | Resolution |", "|---|---|"]
    lines += [f"| `{reason}` | {way} |" for reason, way in REASONS.items()]
    return "\n".join(lines) + "\n"
