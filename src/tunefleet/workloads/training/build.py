"""Builds the trainer of a launch: model, arguments, data, callbacks."""

from __future__ import annotations

from collections.abc import Callable

import datasets
from transformers import (
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from tunefleet.spec import PredictionsSpec
from tunefleet.trainer_control.journal.null import Journal
from tunefleet.workloads.data.sources import Portion
from tunefleet.workloads.data.tokenization import Encoder
from tunefleet.workloads.distributed.ranks import allow_sharding_on_cpu
from tunefleet.workloads.training import samples
from tunefleet.workloads.training.arguments import supervised_arguments
from tunefleet.workloads.training.callbacks import common_callbacks
from tunefleet.workloads.training.exact_trainer import ContinueTokenCount, StopWhenWorse
from tunefleet.workloads.training.launch import Supervised
from tunefleet.workloads.training.model import assembly, hardware
from tunefleet.workloads.training.rows.dataset import TrainingData, stream_position
from tunefleet.workloads.training.rows.streaming import SampleStream
from tunefleet.workloads.training.samples import Answer
from tunefleet.workloads.training.setup import arguments_context, enable_async_checkpoints
from tunefleet.workloads.training.trainer import StreamEpoch, Trainer

# PyTorch's `ignore_index`: a label that does not contribute to the loss.
_IGNORED_LABEL = -100


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


def predict(
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
    questions = ask(launch, held_out, encoder, trainer, wanted.sample_count, wanted.max_new_tokens)
    callback = Predict(wanted, launch.journal)
    callback.ask = lambda: samples.answer(trainer, tokenizer, questions, wanted.max_new_tokens)
    trainer.add_callback(callback)


def ask(
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


class Predict(TrainerCallback):
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
