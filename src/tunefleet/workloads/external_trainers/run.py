"""A run with a third-party trainer from start to end: rows → plan → attached command → adapter or model → result.

It may be killed at any moment and started again on the same folder: the rows are kept, and training resumes from the
newest complete checkpoint.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Final

import datasets
import torch

from tunefleet.errors import InputError
from tunefleet.fsutil import write_file
from tunefleet.spec import TrainingTaskSpec
from tunefleet.spec.options.trainer import NAMES
from tunefleet.trainer_control.files import read_json
from tunefleet.workloads.command import environment_of, run_attached
from tunefleet.workloads.command.discovered_outputs import trained
from tunefleet.workloads.command.trainer_launch import Ran
from tunefleet.workloads.common import base_model
from tunefleet.workloads.data.tokenization import Encoder
from tunefleet.workloads.external_trainers import trainers
from tunefleet.workloads.external_trainers.rows import Rows, write
from tunefleet.workloads.external_trainers.trainers import Plan, Request
from tunefleet.workloads.training.launch import Launch, open_launch
from tunefleet.workloads.training.model import assembly, hardware

logger = logging.getLogger(__name__)

# Working directory of the command, in the job folder.
WORK: Final = "work"


def run(folder: Path) -> None:
    """Run the training task of a job folder.

    Raises:
        InputError: If data, model, options or the trainer cannot be used.
        CommandFailedError: If the trainer failed.
    """
    launch = open_launch(folder, TrainingTaskSpec)
    trainer = trainers.find_trainer(launch.spec.trainer)
    datasets.disable_progress_bars()
    work = folder / WORK
    work.mkdir(exist_ok=True)
    base = assembly.locate_base(launch.spec, launch.job.inputs, launch.workspace)
    tokenizer = base_model.load_tokenizer(base.source)
    with launch.clock.part("data"):
        limit = launch.spec.training.max_seq_length
        limit = min(limit, base_model.context_length(base.source) or limit)
        training = launch.spec.training
        encoder = Encoder(
            tokenizer,
            whole=training.completion_only_loss is False,
            append_eos=training.append_eos,
            vocabulary=base_model.embedding_rows(base.source),
        )
        given = write(launch.spec, launch.job.inputs, launch.workspace, encoder, limit, work / "rows")
        for note in given.about["notes"]:
            launch.journal.event("data.note", note, "warning")
    plan = trainer(_request(launch, base, given, str(tokenizer.pad_token), work))
    for name, text in plan.files.items():
        write_file(work / name, text.encode())
    # Built-in trainers download gated models themselves; custom code gets only the secrets that its plan names.
    keeps = ("HF_TOKEN",) if launch.spec.trainer in NAMES else ()
    env = environment_of(plan.environment, plan.env, pointer="trainer", keeps=keeps)
    about = {"command": list(plan.command), "environment": plan.environment, "files": sorted(plan.files)}
    launch.journal.event("trainer.started", f"{launch.spec.trainer} starts: {' '.join(plan.command)}", data=about)
    with launch.clock.part("training"):
        ran = run_attached(launch.session, plan.command, env=env, cwd=work)
    if ran.ended:
        return
    product = _product(launch, work)
    # Some trainers save the weights only.
    if not (product / "tokenizer_config.json").exists():
        tokenizer.save_pretrained(product)
    report = _report(launch, plan, given, ran, product)
    write_file(launch.folder.responses_json, json.dumps(report, indent=1).encode())


def _request(launch: Launch[TrainingTaskSpec], base: assembly.Base, given: Rows, pad_token: str, work: Path) -> Request:
    spec, machine = launch.spec, hardware.inspect()
    kernels = hardware.choose(machine, bf16=spec.bf16, fp16=spec.fp16, liger=False)
    return Request(
        spec=spec,
        model=base.source.path,
        revision=base.source.revision,
        start=base.adapter_folder,
        train=given.train,
        held_out=given.held_out,
        tokenized=given.saved,
        pad_token=pad_token,
        work=work,
        gpus=torch.cuda.device_count(),
        compute=kernels.compute,
        attention=spec.attention,
    )


def _product(launch: Launch[TrainingTaskSpec], work: Path) -> Path:
    """Return the folder of the trained adapter or model.

    Raises:
        InputError: If the trainer saved none, or the other kind.
    """
    left = trained(launch.folder.root, work)
    if launch.spec.product not in left:
        what = f"saved {', '.join(left)}" if left else "saved no model or adapter"
        raise InputError(
            f"Trainer {launch.spec.trainer} {what}, but {launch.spec.product} was expected.",
            hint="See its log; a custom trainer must save below Plan.output.",
        )
    return launch.product


def _report(launch: Launch[TrainingTaskSpec], plan: Plan, given: Rows, ran: Ran, product: Path) -> dict[str, Any]:
    """Build the result; the first keys are those of the TRL trainer's result."""
    status = launch.session.status.fields
    values = dict(status["values"])
    name = product.name
    state = _state(launch.folder.root / WORK / plan.output)
    return {
        "task_id": launch.job.task_id,
        "training_successful": True,
        "training_time_seconds": round(ran.seconds, 3),
        "error_message": None,
        "model_name": launch.spec.model.source.identifier,
        "dataset_size": given.about["rows"],
        "output_dir": str(launch.folder.root),
        f"{name}_path": str(product),
        **{f"{name}_{key}": None for key in ("archive", "archive_path", "archive_url", "archive_bytes")},
        f"{name}_archive_uploaded": False,
        "steps": status["step"],
        "epochs": state.get("epoch"),
        "metrics": values,
        "losses": _losses(state, values),
        "data": given.about,
        "trainer": {
            "name": launch.spec.trainer,
            "command": list(plan.command),
            "environment": plan.environment,
            "files": dict(plan.files),
        },
        "overrides": launch.changes,
        "stopped_early": ran.state == "stopped",
        "timings": launch.clock.seconds(),
    }


def _state(output: Path) -> dict[str, Any]:
    found = read_json(output / "trainer_state.json")
    if found is None:
        checkpoints = sorted(output.glob("checkpoint-*/trainer_state.json"), key=lambda path: path.stat().st_mtime)
        found = read_json(checkpoints[-1]) if checkpoints else None
    return found or {}


def _losses(state: dict[str, Any], values: dict[str, Any]) -> dict[str, float | None]:
    history = state.get("log_history") or []
    logged = [entry["loss"] for entry in history if "loss" in entry]
    evaluated = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    last = values.get("loss")
    return {
        "train_first": logged[0] if logged else None,
        "train_last": last if isinstance(last, float) else logged[-1] if logged else None,
        "held_out_best": min(evaluated, default=None),
    }
