"""`tunefleet artifacts`: outputs of tasks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, print_json, say
from tunefleet.cli.lazy_group import add, examples
from tunefleet.cli.options import Artifact, complete_task, connect, one_task
from tunefleet.cli.tasks.show import artifact_table
from tunefleet.cli.transfers import transfer_bar
from tunefleet.client import Client
from tunefleet.client.external.result_delivery import BucketDelivery, HttpDelivery, Receiver
from tunefleet.client.external.ssrf_guard import shown
from tunefleet.client.transfer import OnProgress
from tunefleet.errors import InputError, NotFoundError
from tunefleet.runtime.secrets import Secrets
from tunefleet.schemas.api import ArtifactDetail, TaskDetail
from tunefleet.schemas.worker_guide import RESULT_NAMES, SINGLE_FILE, ResultEnvelope
from tunefleet.settings import SecretSettings, load, secret_variables
from tunefleet.spec.options.output import DestinationSpec

app = typer.Typer(help="List and download the outputs of runs.", no_args_is_help=True)
# The user may reach all that this machine can reach; metadata services stay blocked.
_ANYWHERE: Final = ("0.0.0.0/0", "::/0")


@examples("tunefleet artifacts ls", "tunefleet artifacts ls task-3f9a")
def ls(
    task: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Filter by run.", autocompletion=complete_task)
    ] = None,
    *,
    kind: Annotated[str | None, typer.Option("--kind", help="Filter by kind, such as adapter.")] = None,
    as_json: Json = False,
) -> None:
    """List artifacts, newest first."""
    with connect() as client:
        task_id = client.tasks.get(one_task(client, task)).id if task else None
        found = tuple(client.artifacts.iterate(task_id=task_id, kind=kind))
    if as_json:
        print_json(found)
    elif found:
        say(artifact_table(found))
    else:
        say("No artifacts yet.")


@examples(
    "tunefleet artifacts get final_lora --run task-3f9a",
    "tunefleet artifacts get final_lora ./my-adapter --run task-3f9a",
    "tunefleet artifacts get art-81c2",
)
def get(
    artifact: Artifact,
    dest: Annotated[Path | None, typer.Argument(metavar="FOLDER", help="Target folder; default: ./NAME.")] = None,
    *,
    task: Annotated[
        str | None,
        typer.Option(
            "--run", "--task", metavar="RUN", help="Run that produced the artifact.", autocompletion=complete_task
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Download an artifact; files that already exist are verified and kept.

    `tunefleet artifacts ls RUN` lists the names of a run's artifacts; `RUN/NAME` is short for `NAME --run RUN`.

    An existing file with different content is replaced only if you pass FOLDER.
    """
    if task is None and artifact.startswith("task-"):
        task, _, artifact = artifact.partition("/")
    with connect(patience_s=10.0, refused_s=None) as client, transfer_bar() as on_progress:
        named = dest is not None
        if task:
            folder = dest or _folder_for(artifact, "artifact")
            task_id = client.tasks.get(one_task(client, task)).id  # the route for outputs takes no id prefix
            where = client.tasks.fetch_output(task_id, artifact, folder, overwrite=named, on_progress=on_progress)
        else:
            detail = _named(client, artifact)
            folder = dest or _folder_for(detail.name, detail.id)
            where = client.artifacts.fetch(detail.id, folder, overwrite=named, on_progress=on_progress)
    if as_json:
        print_json({"path": str(where.resolve())})
    else:
        say(f"Downloaded {artifact} to {where}.")


def _named(client: Client, artifact: str) -> ArtifactDetail:
    try:
        return client.artifacts.get(artifact)
    except NotFoundError as error:
        names = ", ".join(dict.fromkeys(each.name for each in client.artifacts.list().items)) or "none"
        raise NotFoundError(error.message, hint=f"Newest artifacts: {names}. {error.hint or ''}".strip()) from None


def _folder_for(name: str, otherwise: str) -> Path:
    """Return the default folder for an artifact; its name must not lead to `.git` or another path."""
    # The name comes from the server: only its last part, and no hidden folder.
    last = Path(name).name
    return Path(last if last[:1].isalnum() else otherwise)


@examples(
    "tunefleet artifacts deliver task-3f9a",
    "tunefleet artifacts deliver task-3f9a --to https://example.org/results --header 'Authorization: Bearer KEY'",
)
def deliver(
    task: Annotated[str, typer.Argument(metavar="RUN", help="Run whose result is sent.", autocompletion=complete_task)],
    *,
    to: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="Target; default: the destination in the run's spec.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", help="HTTP header (NAME: VALUE) to send with each request.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Deliver a run's result and files from the server to a URL or bucket, without rerunning it."""
    with connect(patience_s=10.0, refused_s=None) as client, transfer_bar() as on_progress:
        task_id = one_task(client, task)
        sent = _deliver_result(client, task_id, to=to, headers=header or (), on_progress=on_progress)
    if as_json:
        print_json(asdict(sent))
    else:
        say(f"Sent the result of {sent.task_id} and {formatting.plural(len(sent.files), 'file')} to {sent.url}.")


for _function, _name in ((ls, "ls"), (get, "get"), (deliver, "deliver")):
    add(app, _function, _name)


@dataclass(frozen=True, slots=True)
class Sent:
    """A delivery: its target and files."""

    task_id: str
    url: str
    files: tuple[str, ...]


def _deliver_result(
    client: Client, task: str, *, to: str | None, headers: Iterable[str], on_progress: OnProgress
) -> Sent:
    """Download result and files of a task from the server, and send them."""
    detail = client.tasks.get(task)
    outward, where = _outward(detail, to, headers)
    files = {file.name: file for file in client.tasks.files(detail.id).files}
    result = next((files[name] for name in reversed(RESULT_NAMES) if name in files), None)
    if result is None:
        raise InputError(f"The server has no result for {detail.id}.", hint=f"The run is {detail.status}.")
    # The same selection as on the worker: artifacts that are a single file; of a trained folder, its archive.
    single = {made.name for made in client.artifacts.iterate(task_id=detail.id) if made.metadata.get(SINGLE_FILE)}
    sent = []
    # One file at a time: all of them may not fit on the disk.
    with tempfile.TemporaryDirectory(prefix="tunefleet-deliver-") as folder:
        for file in files.values():
            if file.name in single and file.name not in RESULT_NAMES:
                path = Path(folder, file.name)
                client.tasks.fetch_file(detail.id, file, path, on_progress=on_progress)
                outward.file(detail.id, path)
                path.unlink()
                sent.append(file.name)
        path = Path(folder, result.name)
        client.tasks.fetch_file(detail.id, result, path)
        outward.result(ResultEnvelope.model_validate_json(path.read_bytes()))
    return Sent(detail.id, where, tuple(sent))


def _outward(task: TaskDetail, to: str | None, headers: Iterable[str]) -> tuple[HttpDelivery | BucketDelivery, str]:
    """Return the sender and a readable target."""
    raw = (task.spec.get("output") or {}).get("destination") or {}
    wanted = DestinationSpec.model_validate(raw)
    url = to or wanted.url
    if url is None:
        raise InputError("The run has no destination.", hint="Set one with --to.")
    settings = load(SecretSettings)
    secrets = Secrets(secret_variables(), settings.secrets_dir, settings.secrets_limits)
    if to is None and wanted.type == "s3":
        if any(headers):
            raise InputError("--header applies to URLs only; the run's destination is a bucket.", hint="Omit --header.")
        secrets.check({"output": {"destination": raw}}, task.kind, None)
        return BucketDelivery(*secrets.fill([url, wanted.access_key, wanted.secret_key])), url
    # Headers of the spec may hold credentials: they are sent to the URL of the spec only.
    known = {} if to is not None else dict(wanted.headers or {})
    given = dict(_header(text) for text in headers)
    address, sent = str(secrets.fill(url)), {**known, **given}
    secrets.check_sent([url, sent], address)
    receiver = Receiver(address, wanted.method, secrets.fill(sent), wanted.timeout_s)
    return HttpDelivery(receiver, allowed=_ANYWHERE), shown(address)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise InputError(f"{text!r} is not a header.", hint="Use 'NAME: VALUE'.")
    return name.strip(), value.strip()
