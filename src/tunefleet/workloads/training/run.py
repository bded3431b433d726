"""A supervised run from start to end: data → tokens → model → eval before → training → eval after → delivery.

It may be killed at any moment and started again on the same folder: it then resumes from the newest valid checkpoint
and keeps the evaluation that an earlier launch made before training.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from tunefleet import fsutil
from tunefleet.spec import TrainingTaskSpec
from tunefleet.workloads.common import base_model
from tunefleet.workloads.data.token_cache import TokenCache
from tunefleet.workloads.data.tokenization import Encoder
from tunefleet.workloads.distributed import ranks
from tunefleet.workloads.training import participation, samples, setup
from tunefleet.workloads.training.build import ask, build_trainer, predict
from tunefleet.workloads.training.disk_check import require_disk
from tunefleet.workloads.training.launch import Supervised
from tunefleet.workloads.training.model import assembly, hardware
from tunefleet.workloads.training.rows.dataset import open_data, prepare
from tunefleet.workloads.training.summary import Evaluation, Outcome, build
from tunefleet.workloads.training.trainer import Trainer


def run(folder: Path) -> None:
    """Run the supervised training task of a job folder.

    Raises:
        InputError: If data, model or options cannot be used.
        MachineError: If this machine lacks something the spec requires.
    """
    launch = setup.open_training(folder, TrainingTaskSpec)
    _train(launch)


def _train(launch: Supervised) -> None:
    spec, clock, session = launch.spec, launch.clock, launch.session
    hardware_setup = setup.detect_hardware(launch, liger=spec.training.liger)
    machine, kernels, memory = hardware_setup.machine, hardware_setup.kernels, hardware_setup.memory
    _warn_about_packing(launch, kernels)
    # Rank 0 first: it downloads and unpacks into the shared folder, and the other ranks find the files there.
    with clock.part("data"), ranks.leader_first(launch.folder, launch.job.launch, "data"):
        found = open_data(spec, launch.job.inputs, launch.workspace)
        if found.rows is not None:
            launch, own = participation.shard_rows(launch, found.rows.rows, found.rows.shape.origin)
            found, spec = replace(found, rows=replace(found.rows, rows=own)), launch.spec
    with clock.part("model"), ranks.leader_first(launch.folder, launch.job.launch, "model"):
        base = assembly.locate_base(spec, launch.job.inputs, launch.workspace)
        tokenizer = base_model.load_tokenizer(base.source)
    with clock.part("tokenizing"):
        whole = spec.training.completion_only_loss is False
        append_eos, vocabulary = spec.training.append_eos, base_model.embedding_rows(base.source)
        encoder = Encoder(tokenizer, whole=whole, append_eos=append_eos, vocabulary=vocabulary)
        kept = TokenCache(launch.folder.tokens_dir, tokenizer, encoder, writes=session.leads)
        training_data = prepare(spec, found, encoder, base_model.context_length(base.source), launch.journal, kept)
    memory.report_estimate(base.source, kernels, training_data.max_length, launch.journal, training_data.labelled)
    # Reported before the weights are loaded: running out of memory then kills the process without a message.
    with clock.part("model"):
        trainer = build_trainer(launch, base, tokenizer, training_data, machine, kernels)
    if session.leads:
        require_disk(launch.folder, trainer, adapter=spec.adapter is not None, make_room=kept.discard)
    wanted = spec.evaluate
    questions = ask(launch, found.held_out, encoder, trainer, wanted.questions, wanted.max_new_tokens)
    if wanted.exact_match is not None and found.held_out is not None:
        samples.require_comparable(questions, wanted.exact_match, found.held_out)
    predict(launch, trainer, tokenizer, found.held_out, encoder)
    before, after = setup.train_between(
        launch,
        trainer,
        lambda step, when: _measure(launch, trainer, tokenizer, questions, step, when),
        lambda: _baseline(launch, trainer, tokenizer, questions),
    )
    with clock.part("saving"):
        delivered = setup.deliver(launch, trainer, tokenizer)
    resume = str(session.resume.path) if session.resume else None
    outcome = Outcome(trainer, machine, kernels, resume, delivered, clock.seconds(), training_data, before, after)
    setup.write_result(launch, memory, build(launch.job, spec, outcome))
    # Only after the result is written: until then a relaunch needs the cached tokens.
    kept.discard()


def _warn_about_packing(launch: Supervised, kernels: hardware.Kernels) -> None:
    training = launch.spec.training
    if training.packing and not kernels.varlen and training.batch_size > 1:
        text = "Without FlashAttention, packing computes attention over all token pairs of a batch: use batch_size 1."
        launch.journal.event("training.packing", text, "warning")


def _baseline(
    launch: Supervised,
    trainer: Trainer,
    tokenizer: PreTrainedTokenizerBase,
    questions: list[samples.EvalPrompt],
) -> Evaluation:
    """Evaluate the untrained model, or read the evaluation of an earlier launch."""
    if launch.baseline.exists():
        kept = json.loads(launch.baseline.read_bytes())
        return Evaluation(kept["loss"], [samples.Answer(**answer) for answer in kept["answers"]])
    measured = _measure(launch, trainer, tokenizer, questions, 0, "before")
    kept = {"loss": measured.loss, "answers": [answer.as_json() for answer in measured.answers]}
    if launch.session.leads:
        fsutil.write_file(launch.baseline, json.dumps(kept).encode())
    return measured


def _measure(
    launch: Supervised,
    trainer: Trainer,
    tokenizer: PreTrainedTokenizerBase,
    questions: list[samples.EvalPrompt],
    step: int,
    when: str,
) -> Evaluation:
    if trainer.eval_dataset is None:
        return Evaluation(None, [])
    journal, wanted = launch.journal, launch.spec.evaluate
    loss = trainer.held_out_loss()
    journal.metric(step, {"held_out_loss": loss})
    journal.event(f"evaluation.{when}", f"Eval loss {when} training: {loss:.4f} nats per token.")
    answers = samples.answer(
        trainer, tokenizer, questions, wanted.max_new_tokens, lambda: journal.progress("evaluating")
    )
    if wanted.exact_match is not None:
        right = samples.right(answers, wanted.exact_match)
        journal.metric(step, {"held_out_exact_match": sum(right) / len(right)})
        journal.event(f"evaluation.{when}", f"Exact match {when} training: {sum(right)} of {len(right)} answers.")
    for index, answer in enumerate(answers[: wanted.answers]):
        journal.prediction(step, index, answer.prompt, answer.output, answer.reference)
    return Evaluation(loss, answers)
