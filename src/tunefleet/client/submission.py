"""Submission of a workflow file: reads it, uploads the local files that it names, and sends it to the server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunefleet.client import transfer
from tunefleet.client.call import Flow, ask, work
from tunefleet.client.local_data import check_file
from tunefleet.client.routes import workflow_routes
from tunefleet.errors import DataError, Fault, InputError, ModelError, SpecError
from tunefleet.schemas.api import SubmitRequest, TaskDetail, WorkflowDetail
from tunefleet.spec import LocalPath, Workflow, deep_set, local_paths, override_document, parse_workflow


def read_document(source: Path | str | Mapping[str, Any]) -> tuple[str, Path | None]:
    """Return the text of a workflow file, and its path if it came from one.

    Args:
        source: A path, the text itself (recognized by a line break or brace), or its content as a mapping.

    Raises:
        InputError: If the file is unreadable.
    """
    if isinstance(source, Mapping):
        try:
            return json.dumps(dict(source), allow_nan=False, indent=2), None
        except (TypeError, ValueError) as error:
            raise InputError(f"The workflow cannot be serialized as JSON: {error}.") from error
    if isinstance(source, str) and ("\n" in source or source.lstrip().startswith("{")):
        return source, None
    file = Path(source).expanduser()
    try:
        return file.read_text(encoding="utf-8"), file
    except FileNotFoundError:
        raise InputError(f"File not found: {file}.", hint="Check the path of the workflow file.") from None
    except IsADirectoryError:
        raise InputError(f"{file} is a folder.", hint="Pass the path of a workflow file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read as text.", hint=str(error)) from error


def override(document: str, overrides: Mapping[str, Any], *, filename: str | None = None) -> tuple[str, Workflow]:
    """Change fields of a workflow file's spec, and parse it.

    Args:
        document: Its text; may lack fields that the changes add.
        overrides: Dotted path below `spec` → value; without any, the text stays byte-identical.

    Returns:
        The text to submit, and the parsed workflow.

    Raises:
        SpecError: If the changed workflow file is invalid.
    """
    if not overrides:
        return document, parse_workflow(document, filename=filename)
    changed = override_document(document, overrides, filename=filename)
    try:
        return changed, parse_workflow(changed, filename=filename)
    except SpecError as error:
        parse_workflow(document, filename=filename)  # reports an error of the file itself with its line
        # Line numbers of the changed text do not match the user's file.
        faults = [Fault(fault.path, fault.message, hint=fault.hint) for fault in error.faults]
        raise SpecError(faults, filename=f"{filename or 'the workflow file'} with these changes") from None


def submit(
    source: Path | str | Mapping[str, Any],
    *,
    overrides: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
    strict: bool = False,
    on_progress: transfer.OnProgress = transfer.ignore_progress,
) -> Flow[WorkflowDetail]:
    """Validate a workflow file, upload the local files that it names, and submit it.

    Args:
        source: Path of the workflow file, its text, or its content as a mapping.
        overrides: Fields of `spec` to change before submitting: dotted path → value.
        idempotency_key: Repeating the call with the same key returns the first response; `None` creates a key.
        strict: Refuse a task that none of the current workers can run.
        on_progress: Called with the progress of uploads.

    Raises:
        SpecError: If the workflow file is invalid; lists every error.
        InputError: If a file that it names does not exist.
        UnreachableError: If the server does not respond.
    """
    text, file = read_document(source)
    filename = str(file) if file else None
    document, workflow = override(text, overrides or {}, filename=filename)
    yield from work(lambda: check_local_files(workflow, file.parent if file else Path()))
    inputs = yield from _push_local_files(workflow, file.parent if file else Path(), on_progress)
    request = SubmitRequest(document=document, filename=filename, inputs=inputs, strict=strict)
    try:
        return (yield from ask(workflow_routes.create_workflow(request, idempotency_key or uuid.uuid4().hex)))
    except SpecError as error:
        raise SpecError(error.faults, filename=filename) from None


def clone(
    task_id: str,
    overrides: Mapping[str, Any] | None = None,
    *,
    on_progress: transfer.OnProgress = transfer.ignore_progress,
) -> Flow[TaskDetail]:
    """Submit a task again as a new one, with changed fields, and upload the local files that they name.

    Args:
        task_id: Id of the task, or a unique prefix.
        overrides: Dotted path below `spec` → value; a local path is relative to the current folder.
        on_progress: Called with the progress of uploads.

    Raises:
        SpecError: If the changed spec is invalid.
        InputError: If a file that a changed field names does not exist.
    """
    changes = {path.removeprefix("spec."): value for path, value in (overrides or {}).items()}
    inputs: dict[str, str] = {}
    if changes:
        task = yield from ask(workflow_routes.get_task(task_id))
        spec = json.loads(json.dumps(task.resolved or task.spec))
        for path, value in changes.items():
            deep_set(spec, path, value)
        named = [each for each in local_paths(spec) if any(f"{each.pointer}.".startswith(f"{p}.") for p in changes)]
        found = [(each, file) for each in named if (file := local_file(each, Path(), base="the current folder"))]
        for each, file in found:
            pushed = yield from transfer.push(file, kind=each.role, on_progress=on_progress)
            inputs[each.pointer] = pushed.digest
    return (yield from ask(workflow_routes.clone_task(task_id, overrides, inputs)))


def check_local_files(workflow: Workflow, folder: Path) -> list[Path]:
    """Locate the local files that a workflow names, and validate the first rows of datasets.

    Args:
        workflow: The workflow to submit.
        folder: Base of relative paths.

    Returns:
        The files and folders to upload.

    Raises:
        InputError: If one is missing, or its rows do not fit its task.
    """
    found = []
    for task in workflow.tasks:
        for named in local_paths(task.raw):
            file = local_file(named, folder)
            if file is None:
                continue
            found.append(file)
            if named.role == "dataset" and task.spec is not None:
                check_file(task.spec, named.pointer, file)
    return found


def _push_local_files(
    workflow: Workflow, folder: Path, on_progress: transfer.OnProgress
) -> Flow[dict[str, dict[str, str]]]:
    found = [
        (task.name, named, local_file(named, folder)) for task in workflow.tasks for named in local_paths(task.raw)
    ]
    inputs: dict[str, dict[str, str]] = {}
    for task_name, named, file in found:
        if file is not None:
            pushed = yield from transfer.push(file, kind=named.role, on_progress=on_progress)
            inputs.setdefault(task_name, {})[named.pointer] = pushed.digest
    return inputs


def local_file(named: LocalPath, folder: Path, *, base: str = "the folder of the workflow file") -> Path | None:
    """Return the file or folder that a value of a spec refers to, or `None` if it is a remote name.

    A value is local if it is written as a path (`./`, `../`, `/`, `~`), can be nothing else, or exists next to the
    workflow file.

    Raises:
        DataError: If a dataset that can only be a path does not exist.
        ModelError: If a model that can only be a path does not exist.
    """
    file = folder / Path(named.value).expanduser()
    if file.exists():
        return file
    if named.required or (named.looks_local and not named.elsewhere):
        kind = ModelError if named.role == "model" else DataError
        at = "" if named.value == str(file.absolute()) else f" at {file.absolute()}"
        raise kind(
            f"spec.{named.pointer}: {named.value} not found{at}.",
            hint=f"Paths are relative to {base}.",
            path=f"spec.{named.pointer}",
        )
    return None
