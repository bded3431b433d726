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

Every error has a message that names the cause and, in most cases, a hint with the fix. Programs can use its code:
the last part of `type` in a response from the [HTTP API](http-api.md), and `error` in the output of a command with
`--json`. Commands also return an [exit code](exit-codes.md).
"""

_ANSWERS: Final = {
    "method_not_allowed": "The route does not support this HTTP method.",
    "body_stalled": "No request body data arrived for 120 seconds.",
    "not_acceptable": "`/metrics` was requested in an unsupported format.",
    "unsupported_media_type": "The content type of the request body is not supported.",
    "range_invalid": "The requested range is outside the file.",
    "request_invalid": "The request body or a parameter is invalid.",
    "internal": "A bug in the server.",
    "error": "An uncategorized error.",
}
"""What is an answer of the server and no class of its own, or means something else there."""

_LOOK: Final = "Correct the value, name or file given in the message."
WAYS_OUT: Final = {
    "spec_invalid": "Fix the errors at the lines given. `tunefleet validate FILE` lists them without submitting.",
    "request_invalid": "Send a body that matches the route's schema; `faults` lists the invalid fields.",
    "input_invalid": _LOOK,
    "data_invalid": "Fix the dataset or use another one. `tunefleet data try` shows how its rows are read.",
    "model_invalid": "Use a complete model, including its tokenizer, that the worker can access.",
    "reference_invalid": "Check the referenced result with `tunefleet show RUN --json`.",
    "adapter_refused": "Train with the same base model and `lora` block as the other participants.",
    "artifact_invalid": "Upload the files again. They were damaged, or a path leads outside its folder.",
    "unauthenticated": "Set a valid key with `tunefleet login` or `TUNEFLEET_KEY`.",
    "forbidden": "Use a key with the role given in the message, or ask an admin of the project.",
    "not_found": "Check the id with `tunefleet ls`. "
    "Resources that your key has no access to are also reported as not found.",
    "method_not_allowed": "Use a method listed under [Routes](http-api.md#routes).",
    "not_acceptable": "Send `Accept: text/plain` or `application/json`.",
    "conflict": "Wait for the state to change, or change it. The message describes the conflict.",
    "illegal_transition": "Check the status. [Lifecycle](lifecycle.md) lists the allowed changes.",
    "offset_conflict": "Continue at the offset in `cursor`.",
    "gone": "Do not retry. The message gives the reason.",
    "body_stalled": "Send the request again. Uploads resume where they stopped.",
    "too_large": "Send less data, or raise the limit in the [configuration](configuration.md).",
    "unsupported_media_type": "Send a `Content-Type` that [the route](http-api.md#routes) accepts.",
    "over_quota": "Remove unused data, or ask an admin to raise the quota. See "
    "[Projects and quotas](../how-to/projects-and-quotas.md).",
    "too_many": "Wait the number of seconds given in `Retry-After`.",
    "range_invalid": "Request a range within the file's size.",
    "error": "Read the message. The log of the process that reported it has more details.",
    "internal": "Check the server's log and report the bug.",
    "store_unusable": "Check the database and the data folder with `tunefleet doctor`.",
    "unreachable": "Run `tunefleet doctor` to check that it is running and reachable.",
    "machine": "Free up or install the resource named in the message. "
    "`tunefleet doctor` lists everything that is missing.",
    "step_failed": "The step is retried automatically. `tunefleet campaign logs` shows the cause.",
    "cycle_failed": "Fix the cause named in the message, then run `tunefleet campaign retry`.",
    "order_failed": "Read the provider's message in `tunefleet campaign logs`, then run `tunefleet campaign retry`.",
    "misconfigured": "Fix the campaign file or the setting named in the message, then run `tunefleet campaign resume`.",
    "diverged": "Lower `training.learning_rate`, or set `on_nan: rollback`.",
    "merge_failed": "Read the message: it contains the exit code of the merge process.",
    "not_now": "Use an existing job in a state that allows the request.",
    "delivery_failed": "See [a failed delivery](../how-to/debug-a-failed-workflow.md"
    "#a-delivery-is-delayed-or-has-failed).",
    "result_missing": "Write the result as JSON. See [Custom task types](../how-to/custom-task-types.md).",
    "still_runs": "Run the same command again once the merge has finished.",
    "not_tracked": "Check that the tracker is reachable and its key is valid.",
}
"""Code → what to do."""

_OF_THE_PROGRAM: Final = "Read the traceback in `tunefleet show RUN` and `tunefleet logs RUN`."
REASONS: Final = {
    "upstream_failed": "Fix the task named in the error, then run `tunefleet retry`.",
    "bad_input": "Fix the problem described in the error and submit again. Retrying without changes fails again.",
    "bug": _OF_THE_PROGRAM,
    "out_of_memory": "Use a smaller `batch_size` or `max_seq_length`, or a worker with more memory.",
    "disk_full": "Free disk space on the worker, then run `tunefleet retry`.",
    "network": "Check that the worker can reach the host named in the error, then run `tunefleet retry`.",
    "killed": "Find out who sent the signal. If no one did, it was probably the kernel's out-of-memory killer.",
    "crashed": _OF_THE_PROGRAM,
    "timeout": "Raise `limits.max_runtime_s`, or reduce the amount of work in the task.",
    "stalled": "Use `tunefleet logs RUN` to see where it hangs. If it is just slow, raise `limits.stall_after_s`.",
    "diverged": "Lower `training.learning_rate`, or set `on_nan: rollback`.",
    "delivery_failed": "Fix the destination. See [Debug a failed workflow](../how-to/debug-a-failed-workflow.md"
    "#a-delivery-is-delayed-or-has-failed).",
    "worker_lost": "Check the worker's log and `tunefleet workers show`, then run `tunefleet retry`.",
    "no_nodes": "Read the cluster's message in the error. See [Slurm](../how-to/slurm.md) or [Ray](../how-to/ray.md).",
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
    lines = [_HEAD, "## Codes in responses and commands\n"]
    lines += ["| Code | HTTP | Exit code | Meaning | Resolution |", "|---|---|---|---|---|"]
    for code, status in STATUSES.items():
        kind = ours.get(code)
        meaning = _ANSWERS.get(code) or (kind.meaning if kind else "")
        lines.append(f"| `{code}` | {status} | {_exit_code(code, status)} | {meaning} | {WAYS_OUT[code]} |")
    lines += ["\n## Codes in tasks, campaigns and the agent\n", "| Code | Meaning | Resolution |", "|---|---|---|"]
    lines += [
        f"| `{kind.code}` | {kind.meaning} | {WAYS_OUT[kind.code]} |" for kind in found if kind.code not in STATUSES
    ]
    lines += ["\n## Codes in the agent protocol\n", "An agent can receive these codes when it claims a job.\n"]
    lines += ["| Code | Meaning |", "|---|---|"]
    lines += [f"| `{kind.code}` | {kind.meaning} |" for kind in kinds() if kind.protocol]
    lines += ["\n## Failure reasons\n"]
    lines += ["[Lifecycle](lifecycle.md#reasons) explains each reason and shows which are retried automatically.\n"]
    lines += ["| Reason | Resolution |", "|---|---|"]
    lines += [f"| `{reason}` | {way} |" for reason, way in REASONS.items()]
    return "\n".join(lines) + "\n"
