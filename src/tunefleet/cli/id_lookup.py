"""Resolve a name or an id prefix to a task, worker or federation."""

from __future__ import annotations

from tunefleet.cli.options import is_workflow
from tunefleet.client import Client
from tunefleet.errors import ConflictError, InputError, NotFoundError

# How many candidates an error lists.
_NAMED = 8
_WORKERS = 1000
_FEDERATIONS = 1000


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
        raise NotFoundError(f"There is no worker {name}.", hint="`tunefleet workers` lists them.")
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
