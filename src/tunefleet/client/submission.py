"""Submitting a document: it is read, the local files that it names are uploaded, and it goes to the server."""

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
from tunefleet.schemas.api import SubmitRequest, WorkflowDetail
from tunefleet.spec import LocalPath, Workflow, local_paths, override_document, parse_workflow


def read_document(source: Path | str | Mapping[str, Any]) -> tuple[str, Path | None]:
    """Return the text of a document and the file that it came from, if it came from one.

    Args:
        source: A path, the text itself (recognised by its line break or brace), or what the text would say.

    Raises:
        InputError: If the file cannot be read.
    """
    if isinstance(source, Mapping):
        try:
            return json.dumps(dict(source), allow_nan=False, indent=2), None
        except (TypeError, ValueError) as error:
            raise InputError(f"The document cannot be written as JSON: {error}.") from error
    if isinstance(source, str) and ("\n" in source or source.lstrip().startswith("{")):
        return source, None
    file = Path(source).expanduser()
    try:
        return file.read_text(encoding="utf-8"), file
    except FileNotFoundError:
        raise InputError(f"There is no file {file}.", hint="Check the path of the workflow document.") from None
    except IsADirectoryError:
        raise InputError(f"{file} is a folder.", hint="Name the workflow document in it.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read as text.", hint=str(error)) from error


def override(document: str, overrides: Mapping[str, Any], *, filename: str | None = None) -> tuple[str, Workflow]:
    """Change some fields of a document's spec, and read it.

    Args:
        document: Its text; it may lack what the changes bring.
        overrides: Dotted path below `spec` → value; without any the document stays as it is, to the byte.

    Returns:
        The document as it is to be submitted, and what it says.

    Raises:
        SpecError: If the document is wrong with the changes.
    """
    if not overrides:
        return document, parse_workflow(document, filename=filename)
    changed = override_document(document, overrides, filename=filename)
    try:
        return changed, parse_workflow(changed, filename=filename)
    except SpecError as error:
        parse_workflow(document, filename=filename)  # an error in the file itself has a line
        # Lines of the changed text are not lines of the user's file.
        faults = [Fault(fault.path, fault.message, hint=fault.hint) for fault in error.faults]
        raise SpecError(faults, filename=f"{filename or 'the document'} with these changes") from None


def submit(
    source: Path | str | Mapping[str, Any],
    *,
    overrides: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
    strict: bool = False,
    on_progress: transfer.OnProgress = transfer.ignore_progress,
) -> Flow[WorkflowDetail]:
    """Validate a document, upload the local files that it names, and submit it.

    Args:
        source: Path of the document, its text, or what it says as a mapping.
        overrides: Dotted path below `spec` → value, to change before submitting.
        idempotency_key: The same key gets the first answer again; a new one if `None`.
        strict: Refuse a task that no present worker could ever run.
        on_progress: Told how far uploads are.

    Raises:
        SpecError: If the document is wrong; every fault is listed.
        InputError: If a file that it names is not there.
        UnreachableError: If the server does not answer.
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


def check_local_files(workflow: Workflow, folder: Path) -> list[Path]:
    """Look for the local files that a workflow names, and read the first rows of those that are data.

    Args:
        workflow: What is to be submitted.
        folder: That relative paths start from.

    Returns:
        The files and folders that are uploaded.

    Raises:
        InputError: If one is missing, or its rows are not what its task uses.
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


def local_file(named: LocalPath, folder: Path) -> Path | None:
    """Return the file or folder that a value of a spec means, or `None` if it is a name from elsewhere.

    A value is local if it is written as a path (`./`, `../`, `/`, `~`), can be nothing else, or lies beside the
    document.

    Raises:
        DataError: If a dataset that can only be a path is not there.
        ModelError: If a model that can only be a path is not there.
    """
    file = folder / Path(named.value).expanduser()
    if file.exists():
        return file
    if named.required or (named.looks_local and not named.elsewhere):
        kind = ModelError if named.role == "model" else DataError
        raise kind(
            f"spec.{named.pointer} names {named.value}, but there is no {file.absolute()}.",
            hint="Paths are taken from the folder of the document.",
            path=f"spec.{named.pointer}",
        )
    return None
