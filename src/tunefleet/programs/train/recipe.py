"""A training from beginning to end: data → tokens → model → loss before → training → loss after → delivery.

May be killed at any moment and started again on the same folder: then it goes on from the newest valid checkpoint,
with the loss before the training that it had measured then.
"""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import datasets
import transformers
from transformers import PreTrainedTokenizerBase

from tunefleet.programs import base_model, ranks
from tunefleet.programs.data.kept import KeptTokens
from tunefleet.programs.data.tokens import Encoder
from tunefleet.programs.train import assemble, hardware, outputs, result, samples
from tunefleet.programs.train.begin import AtBegin
from tunefleet.programs.train.build import ask, build_trainer, predict
from tunefleet.programs.train.compression import DropUnpacked, opened
from tunefleet.programs.train.disk import require_disk
from tunefleet.programs.train.launch import Launch, limit_gpu_memory, open_launch
from tunefleet.programs.train.material import find, prepare
from tunefleet.programs.train.memory import Memory
from tunefleet.programs.train.result import Measured
from tunefleet.programs.train.trainer import Trainer
from tunefleet.spec import LoraSftSpec
from tunefleet.wire.jobfolder import JobFolder

logger = logging.getLogger(__name__)

_ARCHIVE_KEYS = ("archive", "archive_path", "archive_url", "archive_bytes")
"""Filled in by the worker, which packs when the job's process is gone and its GPU is free."""


def run(folder: Path) -> None:
    """Run the training of a job folder.

    Raises:
        InputError: If data, model or options cannot be used.
        MachineError: If this machine lacks what the spec asks for.
    """
    paths = JobFolder(folder)
    if paths.responses_json.exists():
        logger.info("The training has its result already; it is not run again")
        return
    launch = open_launch(paths)
    _quieten()
    _train(launch)


def _train(launch: Launch) -> None:
    spec, clock, session = launch.spec, launch.clock, launch.session
    ranks.use_own_device()
    share = limit_gpu_memory()
    machine = hardware.inspect()
    memory = Memory(launch.folder.root.parent, spec, machine.device, share)
    kernels = hardware.choose(
        machine, bf16=spec.bf16, fp16=spec.fp16, attention=spec.attention, liger=spec.training.liger
    )
    _tell_packing(launch, kernels)
    with clock.part("data"), ranks.leader_first(launch.folder, launch.job.launch, "data"):
        found = find(spec, launch.job.inputs, launch.workspace)
    with clock.part("model"), ranks.leader_first(launch.folder, launch.job.launch, "model"):
        base = assemble.locate_base(spec, launch.job.inputs, launch.workspace)
        tokenizer = base_model.load_tokenizer(base.source)
    with clock.part("tokenizing"):
        whole = spec.training.completion_only_loss is False
        kept = KeptTokens(launch.folder.tokens_dir, tokenizer, whole=whole, writes=session.leads)
        encoder = Encoder(tokenizer, whole=whole)
        material = prepare(spec, found, encoder, base_model.context_length(base.source), launch.journal, kept)
    memory.tell(base.source, kernels, material.max_length, launch.journal)
    with clock.part("model"):
        trainer = build_trainer(launch, base, tokenizer, material, machine, kernels)
    if session.leads:
        require_disk(launch.folder, trainer, adapter=isinstance(spec, LoraSftSpec), make_room=kept.discard)
    wanted = spec.evaluate
    questions = ask(launch, found.held_out, encoder, trainer, wanted.answers, wanted.max_new_tokens)
    predict(launch, trainer, tokenizer, found.held_out, encoder)
    first = AtBegin(lambda: _baseline(launch, trainer, tokenizer, questions))
    if launch.shares_weights:
        # A model is shared out together with its optimizer, and that is made when the training begins.
        trainer.add_callback(first)
    else:
        with clock.part("evaluation_before"):
            first.run()
    resume = str(session.resume.path) if session.resume else None
    with clock.part("training"):
        trainer.train(resume_from_checkpoint=_unpacked(launch, trainer))
    with clock.part("evaluation_after"):
        after = _measure(launch, trainer, tokenizer, questions, trainer.state.global_step, "after")
    with clock.part("saving"):
        delivered = _deliver(launch, trainer, tokenizer)
    outcome = result.Outcome(
        trainer, material, machine, kernels, first.result, after, resume, delivered, seconds=clock.seconds()
    )
    report = result.build(launch.job, spec, outcome) | {"overrides": launch.changes, "memory": memory.outcome()}
    if session.leads:
        outputs.write_file(launch.folder.responses_json, json.dumps(report, indent=1).encode())
    kept.discard()


def _tell_packing(launch: Launch, kernels: hardware.Kernels) -> None:
    training = launch.spec.training
    if training.packing and not kernels.varlen and training.batch_size > 1:
        text = "Packing without FlashAttention pays for all pairs of tokens in a batch: batch_size 1 is faster."
        launch.journal.event("training.packing", text, "warning")


def _unpacked(launch: Launch, trainer: Trainer) -> str | None:
    """Return the folder that the trainer is to resume from."""
    resume = launch.session.resume
    if resume is None:
        return None
    folder = opened(resume.path, launch.workspace)
    if folder != resume.path:
        trainer.add_callback(DropUnpacked(folder))
    return str(folder)


def _baseline(
    launch: Launch, trainer: Trainer, tokenizer: PreTrainedTokenizerBase, questions: list[samples.Question]
) -> Measured:
    """Measure the untrained model, or read what an earlier launch has measured."""
    if launch.baseline.exists():
        kept = json.loads(launch.baseline.read_bytes())
        return Measured(kept["loss"], [samples.Answer(**answer) for answer in kept["answers"]])
    measured = _measure(launch, trainer, tokenizer, questions, 0, "before")
    kept = {"loss": measured.loss, "answers": [answer.as_json() for answer in measured.answers]}
    if launch.session.leads:
        outputs.write_file(launch.baseline, json.dumps(kept).encode())
    return measured


def _measure(
    launch: Launch,
    trainer: Trainer,
    tokenizer: PreTrainedTokenizerBase,
    questions: list[samples.Question],
    step: int,
    when: str,
) -> Measured:
    if trainer.eval_dataset is None:
        return Measured(None, [])
    journal = launch.journal
    loss = trainer.held_out_loss()
    journal.metric(step, {"held_out_loss": loss})
    journal.event(f"evaluation.{when}", f"The held-out loss {when} the training is {loss:.4f} nats per token.")
    answers = samples.answer(trainer, tokenizer, questions, launch.spec.evaluate.max_new_tokens)
    for index, answer in enumerate(answers):
        journal.prediction(step, index, answer.prompt, answer.output, answer.reference)
    return Measured(loss, answers)


def _deliver(launch: Launch, trainer: Trainer, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Save the adapter or model; returns the keys of the result that say where, those of an archive still empty."""
    name = launch.product.name
    keys: dict[str, Any] = {f"{name}_{key}": None for key in ("path", *_ARCHIVE_KEYS)}
    keys[f"{name}_archive_uploaded"] = False
    if not launch.spec.training.save_model:
        return keys
    if trainer.best_missing:
        best = Path(str(trainer.state.best_model_checkpoint)).name
        text = f"The best checkpoint, {best}, has lost its weights: what is delivered are the last ones."
        launch.journal.event("training.best_missing", text, "error")
    # Of a model that is shared out every rank brings its part; one of them writes.
    weights = trainer.whole_weights() if launch.shares_weights else None
    if not launch.session.leads:
        return keys

    def write(folder: Path) -> None:
        trainer.model.save_pretrained(folder, state_dict=weights)
        tokenizer.save_pretrained(folder)

    outputs.write_folder(launch.product, write)
    keys[f"{name}_path"] = str(launch.product)
    return keys


def _quieten() -> None:
    """Leave the log to what a person wants to read: no progress bars, warnings only."""
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_warning()
    # What a library will change one day is news for its users' maintainers, not for the reader of a training's log.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|peft|accelerate|torch)\b")
