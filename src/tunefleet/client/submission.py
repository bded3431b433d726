"""Submission of a workflow file: reads it, uploads the local files that it names, and sends it to the server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tunefleet.client import transfer
from tunefleet.client.call import Flow, ask, work
from tunefleet.client.local_data import check_file
from tunefleet.client.routes import sweep_routes, workflow_routes
from tunefleet.errors import DataError, Fault, InputError, ModelError, SpecError
from tunefleet.schemas.api import SubmitRequest, TaskDetail, WorkflowDetail
from tunefleet.schemas.sweep import SweepCreate, SweepDetail
from tunefleet.spec import LocalPath, TaskSpec, Workflow, local_paths, override_document
from tunefleet.spec.base import BUILTIN_DATASETS, BUILTIN_PREFIX
from tunefleet.spec.documents.fault_messages import below_path
from tunefleet.spec.documents.submit_checks import new_faults
from tunefleet.spec.documents.workflow import check_workflow
from tunefleet.spec.file_decoder import decode_file
from tunefleet.spec.text import read_text
from tunefleet.spec.value_preview import first_faults, nearest
from tunefleet.validation_errors import UNKNOWN_KEY

# Files next to a missing one among which a similar name is searched.
_MAX_NEIGHBOURS: Final = 200
_MODEL: Final = "model.source.identifier"


def read_document(source: Path | str | Mapping[str, Any]) -> tuple[str, Path | None]:
    """Return the text of a workflow file, and its path if it came from one.

    Args:
        source: A path, the text itself (recognized by a line break or brace), or its content as a mapping.

    Raises:
        InputError: If the file is unreadable.
        SpecError: If it is not encoded in UTF-8.
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
        return decode_file(file.read_bytes(), str(file)), file
    except FileNotFoundError:
        raise InputError(f"File not found: {file}.", hint="Check the path of the workflow file.") from None
    except IsADirectoryError:
        raise InputError(f"{file} is a folder.", hint="Pass the path of a workflow file.") from None
    except OSError as error:
        raise InputError(f"{file} cannot be read.", hint=str(error)) from error


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
    changed = override_document(document, overrides, filename=filename)
    workflow, faults = check_workflow(changed, filename=filename)
    if workflow is None or faults:
        raise _located(faults, document, overrides, filename)
    return changed, workflow


def read_workflow(
    document: str, overrides: Mapping[str, Any], folder: Path, *, filename: str | None = None
) -> tuple[str, Workflow]:
    """Check everything that can be checked without the server, including the local files that a workflow names.

    Args:
        document: Its text; may lack fields that the changes add.
        overrides: Dotted path below `spec` → value.
        folder: Base of relative paths.
        filename: Its name, for messages.

    Returns:
        The text to submit, and the parsed workflow.

    Raises:
        SpecError: If the workflow file is invalid, a file is missing, or its rows do not fit its task; lists every
            error.
    """
    changed = override_document(document, overrides, filename=filename)
    workflow, faults = check_workflow(changed, filename=filename, check=partial(_file_faults, folder=folder))
    if workflow is not None:
        faults += new_faults((task, task.spec) for task in workflow.tasks)
    if workflow is None or faults:
        raise _located(faults, document, overrides, filename)
    return changed, workflow


def _file_faults(
    spec: Mapping[str, Any], valid: TaskSpec | None, *, folder: Path
) -> Iterator[tuple[str, str, str | None]]:
    """Yield missing files, and rows that do not fit the task: pointer, message, hint."""
    data = spec.get("data")
    bundled = data.get("path") if isinstance(data, Mapping) else None
    found = [(each.pointer, each.role, partial(local_file, each, folder)) for each in local_paths(spec)]
    if bundled in BUILTIN_DATASETS:
        found.append(("data.path", "dataset", partial(_bundled_rows, bundled)))
    for named, role, locate in found:
        try:
            file = locate()
            if file is not None and role == "dataset" and valid is not None:
                check_file(valid, named, file)
        except InputError as error:
            pointer = (error.path or "").removeprefix("spec.") or named
            message = error.message.removeprefix(f"spec.{pointer}: ").removesuffix(".")
            hint = None if error.hint is None else error.hint[:1].lower() + error.hint[1:].removesuffix(".")
            yield pointer, message, hint


def _bundled_rows(name: str) -> Path | None:
    folder = resources.files("tunefleet").joinpath("workloads/assets/data", name.removeprefix(BUILTIN_PREFIX))
    return Path(str(folder.joinpath("train.jsonl")))


def _located(faults: Sequence[Fault], document: str, overrides: Mapping[str, Any], filename: str | None) -> SpecError:
    """Return the error with positions in the user's file; values that overrides set have none."""
    shown = first_faults(faults)
    if not overrides:
        return SpecError(shown, filename=filename)
    source = read_text(document, filename=filename)
    changed = [path.removeprefix("spec.") for path in overrides]
    found = []
    for fault in shown:
        below = fault.path.removeprefix("spec.")
        mark = source.mark(below_path((), fault.path), key=fault.message == UNKNOWN_KEY)
        own = any(f"{below}.".startswith(f"{path}.") for path in changed)
        line, column = (0, 0) if own else mark
        found.append(replace(fault, line=line, column=column))
    if all(fault.line for fault in found):
        return SpecError(sorted(found, key=lambda fault: (fault.line, fault.column)), filename=filename)
    return SpecError(found, filename=f"{filename or 'the workflow file'} with these changes")


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
        SpecError: If the workflow file is invalid, or a file that it names is missing; lists every error.
        InputError: If the workflow file itself does not exist.
        UnreachableError: If the server does not respond.
    """
    text, file = read_document(source)
    filename, folder = str(file) if file else None, file.parent if file else Path()
    document, workflow = yield from work(lambda: read_workflow(text, overrides or {}, folder, filename=filename))
    inputs = yield from _push_local_files(workflow, folder, on_progress)
    request = SubmitRequest(document=document, filename=filename, inputs=inputs, strict=strict)
    try:
        return (yield from ask(workflow_routes.create_workflow(request, idempotency_key or uuid.uuid4().hex)))
    except SpecError as error:
        raise SpecError(error.faults, filename=filename) from None


def submit_sweep(
    source: Path | str | Mapping[str, Any],
    *,
    overrides: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
    on_progress: transfer.OnProgress = transfer.ignore_progress,
) -> Flow[SweepDetail]:
    """Validate a workflow file with `sweep`, upload the local files that it names, and create the sweep.

    Raises:
        SpecError: If the workflow file is invalid, or a file that it names is missing; lists every error.
        InputError: If the workflow file itself does not exist.
        UnreachableError: If the server does not respond.
    """
    text, file = read_document(source)
    filename, folder = str(file) if file else None, file.parent if file else Path()
    document, workflow = yield from work(lambda: read_workflow(text, overrides or {}, folder, filename=filename))
    inputs = yield from _push_local_files(workflow, folder, on_progress)
    request = SweepCreate(document=document, filename=filename, inputs=inputs)
    try:
        return (yield from ask(sweep_routes.create_sweep(request, idempotency_key or uuid.uuid4().hex)))
    except SpecError as error:
        raise SpecError(error.faults, filename=filename) from None


def local_files(workflow: Workflow, folder: Path) -> list[Path]:
    """Return the local files and folders that a workflow uploads.

    Args:
        workflow: From `read_workflow`.
        folder: Base of relative paths.
    """
    named = [local_file(each, folder) for task in workflow.tasks for each in local_paths(task.raw)]
    return [file for file in named if file is not None]


def uploaded_base(task: TaskDetail) -> dict[str, str]:
    """Return the uploaded base model of a task, as an input of another task with the same model."""
    return {_MODEL: task.inputs[_MODEL]} if _MODEL in task.inputs else {}


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
            hint=_similar(file) or f"paths are relative to {base}",
            path=f"spec.{named.pointer}",
        )
    return None


def _similar(file: Path) -> str | None:
    """Return a hint with the file that was probably meant."""
    try:
        there = [each.name for each in islice(file.parent.iterdir(), _MAX_NEIGHBOURS)]
    except OSError:
        return None
    guess = nearest(file.name, there)
    return f"did you mean {guess}, in the same folder?" if guess else None
