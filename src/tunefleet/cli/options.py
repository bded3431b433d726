"""Shared arguments of commands, the parsing of their values, and the lookup of names and id prefixes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any

import typer

from tunefleet.client import Client
from tunefleet.errors import ConflictError, InputError, NotFoundError, TunefleetError, printable

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)\s*([smhdw]?)$")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PATIENCE_S = 2.0
# Shorter than the patience: a local port that refuses is most likely a server that is not started.
_REFUSED_S = 1.0
# How many candidates an error lists.
_NAMED = 8
_WORKERS = 1000
_FEDERATIONS = 1000


def _completer(fetch: Callable[[Any], Iterable[tuple[str, str]]]) -> Callable[[str], list[tuple[str, str]]]:
    def complete(incomplete: str) -> list[tuple[str, str]]:

        try:
            # The shell waits for the completion: no retries.
            with connect(patience_s=0.0) as client:
                return [(word, printable(about)) for word, about in fetch(client) if word.startswith(incomplete)]
        except TunefleetError:
            return []  # completion has no place to show an error

    return complete


def _tasks(client: Any) -> list[tuple[str, str]]:
    return [(task.id, f"{task.name}, {task.status}") for task in client.tasks.list(limit=100).items]


def _workflows(client: Any) -> list[tuple[str, str]]:
    return [(flow.id, f"{flow.name}, {flow.status}") for flow in client.workflows.list(limit=100).items]


def _artifacts(client: Any) -> list[tuple[str, str]]:
    return [(made.name, f"{made.kind}, {made.file_count} files") for made in client.artifacts.list(limit=100).items]


def _workers(client: Any) -> list[tuple[str, str]]:
    return [(worker.id, worker.status) for worker in client.workers.list(limit=100).items]


def _channels(client: Any) -> list[tuple[str, str]]:
    return [(channel.name, f"{channel.format}, {channel.to}") for channel in client.notifications.channels().items]


def _federations(client: Any) -> list[tuple[str, str]]:
    return [(made.id, f"{made.name}, {made.status}") for made in client.federations.list(limit=100).items]


def _campaigns(client: Any) -> list[tuple[str, str]]:
    return [(each.name, each.status.value) for each in client.campaigns.list(limit=100).items]


def _sweeps(client: Any) -> list[tuple[str, str]]:
    return [(each.id, f"{each.name}, {each.status}") for each in client.sweeps.list(limit=100).items]


def _models(client: Any) -> list[tuple[str, str]]:
    found = client.models.list(limit=100).items
    return [(name, "model") for name in dict.fromkeys(each.name for each in found)]


complete_task = _completer(_tasks)
complete_task_or_workflow = _completer(lambda client: [*_tasks(client), *_workflows(client)])
complete_artifact = _completer(_artifacts)
complete_worker = _completer(_workers)
complete_channel = _completer(_channels)
complete_federation = _completer(_federations)
complete_campaign = _completer(_campaigns)
complete_sweep = _completer(_sweeps)
complete_model = _completer(_models)


def _ids(metavar: str, about: str, complete: Callable[[str], list[tuple[str, str]]] = complete_task) -> Any:
    return typer.Argument(metavar=metavar, help=about, autocompletion=complete)


TaskId = Annotated[str, _ids("RUN", "Run id or a unique prefix.")]
TaskIds = Annotated[list[str], _ids("RUN…", "Run ids or unique prefixes.")]
TaskOrWorkflow = Annotated[
    str,
    _ids("RUN", "Id of a run or workflow (wf-…), or a unique prefix.", complete_task_or_workflow),
]
TasksOrWorkflows = Annotated[
    list[str],
    _ids("RUN…", "Ids of runs or workflows (wf-…), or unique prefixes.", complete_task_or_workflow),
]
WorkerId = Annotated[str, _ids("WORKER", "Worker id or a unique prefix.", complete_worker)]
Artifact = Annotated[
    str,
    typer.Argument(metavar="ARTIFACT", help="Name, id or digest of an artifact.", autocompletion=complete_artifact),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]
Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", min=0, help="Stop waiting after this time.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=VALUE", help="Override a field of the spec, such as training.learning_rate=1e-4."
    ),
]


def parse_sets(pairs: Iterable[str] | None) -> dict[str, Any]:
    """Parse `--set a.b=value` pairs; values are YAML, and `1e-4` is a number."""
    from tunefleet.spec import parse_value

    found = {}
    for pair in pairs or ():
        dotted, equals, text = pair.partition("=")
        dotted = dotted.strip().removeprefix("spec.")
        if not equals or not dotted:
            raise InputError(f"--set {pair} is not FIELD=VALUE.", hint="Example: --set training.learning_rate=1e-4.")
        found[dotted] = parse_value(text.strip())
    return found


def parse_pairs(pairs: Iterable[str]) -> dict[str, Any]:
    """Parse `learning_rate=1e-5` pairs for a running task; values are YAML."""
    from tunefleet.spec import parse_value

    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip() or not text.strip():
            raise InputError(f"{pair} is not KEY=VALUE.", hint="Example: learning_rate=1e-5.")
        found[name.strip()] = parse_value(text.strip())
    return found


def parse_duration(text: str) -> float:
    """Parse a duration such as `90`, `30m`, `12h`, `7d` into seconds."""
    match = _DURATION.match(text.strip())
    if match is None:
        raise InputError(f"{text!r} is not a duration.", hint="Use a duration such as 90s, 30m, 12h, 7d or 2w.")
    return float(match[1]) * _SECONDS[match[2]]


def confirm(question: str, *, yes: bool, option: str = "--yes") -> None:
    """Ask for confirmation before data is lost; without a terminal the option is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError(f"{question} Not interactive; pass {option}.", hint=f"Run the command again with {option}.")
    # The question may contain a name from the server, which must not control the terminal.
    typer.confirm(printable(question), abort=True, err=True)


def is_workflow(id_: str) -> bool:
    """Whether an id belongs to a workflow."""
    return id_.startswith("wf-")


# The value of `tunefleet --url`.
chosen_url: ContextVar[str | None] = ContextVar("chosen_url", default=None)


@contextmanager
def connect(*, patience_s: float = _PATIENCE_S, refused_s: float | None = _REFUSED_S) -> Iterator[Client]:
    """Open a client for the server of `--url`, or the one that this user last started or logged in to.

    Args:
        refused_s: Longest wait for a server on this machine whose port refuses; `None` for `patience_s`.
    """
    with Client(chosen_url.get(), patience_s=patience_s, refused_s=refused_s) as client:
        yield client


def one_task(client: Client, id_: str) -> str:
    """Return a task id; of a workflow with a single task, sharded or not, the id of that task."""
    if not is_workflow(id_):
        return id_
    workflow = client.workflows.get(id_)
    tasks = [task for task in workflow.tasks if task.shard_of is None]
    if len(tasks) == 1:
        return tasks[0].id
    named = ", ".join(f"{task.id} ({task.name})" for task in tasks[:_NAMED])
    more = f", and {len(tasks) - _NAMED} more: see `tunefleet show {workflow.id}`" if len(tasks) > _NAMED else ""
    raise InputError(f"{workflow.id} is a workflow with several tasks.", hint=f"Name one of them: {named}{more}.")


def one_worker(client: Client, name: str) -> str:
    """Return the id of the worker with this id or prefix."""
    ids = [worker.id for worker in client.workers.list(limit=_WORKERS).items]
    found = [name] if name in ids else [each for each in ids if each.startswith(name)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFoundError(f"Worker {name} not found.", hint="`tunefleet workers` lists them.")
    raise _several("workers", name, found)


def one_federation(client: Client, name: str) -> str:
    """Return the id or number of the federation with this id, prefix or number."""
    if name.isdecimal():
        return name
    ids = [federation.id for federation in client.federations.list(limit=_FEDERATIONS).items]
    found = [name] if name in ids else [each for each in ids if each.startswith((name, f"fed-{name}"))]
    if len(found) > 1:
        raise _several("federations", name, found)
    # Only the newest are listed: the server finds or rejects an older one.
    return found[0] if found else name


def _several(what: str, name: str, ids: list[str]) -> ConflictError:
    named = ", ".join(ids[:_NAMED]) + (" …" if len(ids) > _NAMED else "")
    return ConflictError(f"Several {what} begin with {name}.", hint=f"Name one of them: {named}.")
