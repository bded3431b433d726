"""A supervised run from start to end: data → tokens → model → eval before → training → eval after → delivery.

It may be killed at any moment and started again on the same folder: it then resumes from the newest valid checkpoint
and keeps the evaluation that an earlier launch made before training.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import datasets
from transformers import (
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from tunefleet import fsutil
from tunefleet.spec import PredictionsSpec, TrainingTaskSpec
from tunefleet.trainer_control.journal.null import Journal
from tunefleet.workloads.common import base_model
from tunefleet.workloads.data.sources import Portion
from tunefleet.workloads.data.token_cache import TokenCache
from tunefleet.workloads.data.tokenization import Encoder
from tunefleet.workloads.distributed import ranks
from tunefleet.workloads.distributed.ranks import allow_sharding_on_cpu
from tunefleet.workloads.training import participation, samples, setup
from tunefleet.workloads.training.arguments import supervised_arguments
from tunefleet.workloads.training.callbacks import common_callbacks
from tunefleet.workloads.training.dataset import TrainingData, open_data, prepare, stream_position
from tunefleet.workloads.training.exact_trainer import ContinueTokenCount, StopWhenWorse
from tunefleet.workloads.training.launch import Supervised
from tunefleet.workloads.training.model import assembly, hardware
from tunefleet.workloads.training.samples import Answer
from tunefleet.workloads.training.setup import arguments_context, enable_async_checkpoints, require_disk
from tunefleet.workloads.training.streaming import SampleStream
from tunefleet.workloads.training.summary import Evaluation, Outcome, build
from tunefleet.workloads.training.trainer import StreamEpoch, Trainer

# PyTorch's `ignore_index`: a label that does not contribute to the loss.
_IGNORED_LABEL = -100


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
    _warn_about_template(launch, training_data.shape, tokenizer)
    memory.report_estimate(base.source, kernels, training_data.max_length, launch.journal, training_data.labelled)
    # Reported before the weights are loaded: running out of memory then kills the process without a message.
    with clock.part("model"):
        trainer = build_trainer(launch, base, tokenizer, training_data, machine, kernels)
    if session.leads:
        require_disk(launch.folder, trainer, adapter=spec.adapter is not None, make_room=kept.discard)
    wanted = spec.evaluate
    questions = _ask(launch, found.held_out, encoder, trainer, wanted.questions, wanted.max_new_tokens)
    if wanted.exact_match is not None and found.held_out is not None:
        samples.require_comparable(questions, wanted.exact_match, found.held_out)
    _predict(launch, trainer, tokenizer, found.held_out, encoder)
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


def _warn_about_template(launch: Supervised, shape: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Say that an instruct model is trained on plain text: a chat with it uses the template, and finds little of it."""
    if shape == "pair" and not launch.spec.data.as_chat and tokenizer.chat_template is not None:
        text = (
            "The model has a chat template, but the rows are trained as plain text. Set `data.as_chat: true`, or chat "
            "with the result without the template."
        )
        launch.journal.event("data.plain_text", text, "warning")


def _warn_about_packing(launch: Supervised, kernels: hardware.Kernels) -> None:
    training = launch.spec.training
    if training.packing and not kernels.varlen and training.batch_size > 1:
        text = "Without FlashAttention, packing computes attention over all token pairs of a batch: use batch_size 1."
        launch.journal.event("training.packing", text, "warning")


def build_trainer(
    launch: Supervised,
    base: assembly.Base,
    tokenizer: PreTrainedTokenizerBase,
    training_data: TrainingData,
    machine: hardware.Hardware,
    kernels: hardware.Kernels,
) -> Trainer:
    """Load the model and build the trainer of a launch."""
    spec = launch.spec
    set_seed(spec.training.seed)
    count = ContinueTokenCount()
    held_out = training_data.held_out
    # Before the model is loaded: creating the arguments registers DeepSpeed or FSDP, which loading depends on.
    args = supervised_arguments(spec, arguments_context(launch, machine, kernels))
    loaded, lora = assembly.load_base(spec, base, kernels, spread=launch.parallelism == "device_map")
    if launch.parallelism == "fsdp":
        allow_sharding_on_cpu()
    trainer = Trainer(
        model=loaded,
        args=args,
        train_dataset=training_data.dataset,
        # Sorted by length, batches need less padding; the eval loss is a mean over tokens, so it stays the same.
        eval_dataset=None if held_out is None else _pad_to_batches(_sorted_by_length(held_out.dataset), args),
        processing_class=tokenizer,
        peft_config=lora,
        callbacks=[count, *_callbacks(launch, training_data)],
    )
    count.trainer = trainer
    enable_async_checkpoints(launch, trainer)
    if training_data.stream is not None:
        _open_stream(launch, trainer, training_data.stream)
    return trainer


def _callbacks(launch: Supervised, training_data: TrainingData) -> list[TrainerCallback]:
    callbacks: list[TrainerCallback] = [StreamEpoch()] if training_data.stream is not None else []
    callbacks += common_callbacks(launch)
    stopping = launch.spec.training.early_stopping
    if stopping is not None:
        callbacks.append(StopWhenWorse(stopping.patience, stopping.threshold))
    return callbacks


def _open_stream(launch: Supervised, trainer: Trainer, stream: SampleStream) -> None:
    args, resume = trainer.args, launch.session.resume
    needed = args.max_steps * args.gradient_accumulation_steps * args.train_batch_size * args.world_size
    trainer.train_on_stream(stream, stream_position(resume.path if resume else None, stream, needed, launch.journal))


def _sorted_by_length(dataset: datasets.Dataset) -> datasets.Dataset:
    lengths = [len(ids) for ids in dataset["input_ids"]]
    return dataset.select(sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True))


def _pad_to_batches(dataset: datasets.Dataset, args: TrainingArguments) -> datasets.Dataset:
    """Append rows with masked labels, so that every rank gets the same number of full batches."""
    # Accelerate would otherwise repeat rows on several ranks, and they would count twice in the loss.
    missing = -len(dataset) % (args.eval_batch_size * args.world_size)
    if args.world_size == 1 or not missing:
        return dataset
    blank = dataset.select([len(dataset) - 1]).map(
        lambda row: {"labels": [_IGNORED_LABEL] * len(row["labels"])}, features=dataset.features
    )
    return datasets.concatenate_datasets([dataset, *[blank] * missing])


def _ask(
    launch: Supervised,
    held_out: Portion | None,
    encoder: Encoder,
    trainer: Trainer,
    count: int,
    max_new_tokens: int,
) -> list[samples.EvalPrompt]:
    """Choose eval prompts whose length leaves `max_new_tokens` of the context."""
    if not count or held_out is None:
        return []
    context = getattr(trainer.model.config.get_text_config(), "max_position_embeddings", None)
    room = (context or launch.spec.training.max_seq_length) - max_new_tokens
    questions, skipped = samples.choose_prompts(held_out, encoder, count, room)
    if skipped:
        text = f"{skipped} eval prompts are skipped: empty, or too long for {max_new_tokens} new tokens."
        launch.journal.event("evaluation.skipped", text, "warning")
    return questions


def _predict(
    launch: Supervised,
    trainer: Trainer,
    tokenizer: PreTrainedTokenizerBase,
    held_out: Portion | None,
    encoder: Encoder,
) -> None:
    """Add a callback that answers eval prompts at evaluations, if the spec enables `predictions`."""
    wanted = launch.spec.predictions
    if wanted is None or not wanted.enabled:
        return
    questions = _ask(launch, held_out, encoder, trainer, wanted.sample_count, wanted.max_new_tokens)
    callback = _Predict(wanted, launch.journal)
    callback.ask = lambda: samples.answer(trainer, tokenizer, questions, wanted.max_new_tokens)
    trainer.add_callback(callback)


class _Predict(TrainerCallback):
    """Answers eval prompts during training; the random state is restored afterwards."""

    ask: Callable[[], list[Answer]] | None = None
    """Generates the answers; set once the trainer exists."""

    def __init__(self, wanted: PredictionsSpec, journal: Journal) -> None:
        self._every = wanted.sample_frequency
        self._journal = journal

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Answer at every n-th evaluation."""
        # Counted from the log history, which a resumed launch continues.
        number = sum("eval_loss" in entry for entry in state.log_history)
        if self._every == "eval" or (isinstance(self._every, int) and number % self._every == 0):
            self._write(state.global_step)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Answer at the end of an epoch."""
        if self._every == "epoch":
            self._write(state.global_step)

    def _write(self, step: int) -> None:
        for index, answer in enumerate(self.ask() if self.ask else ()):
            self._journal.prediction(step, index, answer.prompt, answer.output, answer.reference)


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

    def report() -> None:
        # With the steps: the newest record also says whether the run has done all of them.
        journal.progress("evaluating", step=trainer.state.global_step, max_steps=trainer.state.max_steps)

    answers = samples.answer(trainer, tokenizer, questions, wanted.max_new_tokens, report)
    if wanted.exact_match is not None:
        right = samples.right(answers, wanted.exact_match)
        journal.metric(step, {"held_out_exact_match": sum(right) / len(right)})
        journal.event(f"evaluation.{when}", f"Exact match {when} training: {sum(right)} of {len(right)} answers.")
    for index, answer in enumerate(answers[: wanted.answers]):
        journal.prediction(step, index, answer.prompt, answer.output, answer.reference)
    return Evaluation(loss, answers)
