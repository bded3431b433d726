"""Put the trainer of a launch together: model, arguments, data, callbacks."""

from __future__ import annotations

from typing import Any

import datasets
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainingArguments, set_seed

from tunefleet import attach
from tunefleet.attach.retention import kept_by_others
from tunefleet.programs.data.sources import Portion
from tunefleet.programs.data.tokens import Encoder
from tunefleet.programs.sharding import allow_sharding_on_cpu
from tunefleet.programs.train import assemble, deepspeed, hardware, samples
from tunefleet.programs.train.arguments import training_arguments
from tunefleet.programs.train.background import BackgroundWriter
from tunefleet.programs.train.compression import Compress
from tunefleet.programs.train.divergence import WatchDivergence
from tunefleet.programs.train.launch import Launch
from tunefleet.programs.train.material import Material, place_of
from tunefleet.programs.train.predictions import Predict
from tunefleet.programs.train.streaming import SampleStream
from tunefleet.programs.train.trackers import tensorboard
from tunefleet.programs.train.trainer import ContinueTokenCount, StopWhenWorse, StreamEpoch, Trainer

_UNCOUNTED = -100


def build_trainer(
    launch: Launch,
    base: assemble.Base,
    tokenizer: PreTrainedTokenizerBase,
    material: Material,
    machine: hardware.Hardware,
    kernels: hardware.Kernels,
) -> Trainer:
    """Load the model and make the trainer of a launch.

    Raises:
        ModelError: If the model or adapter cannot be loaded.
        MachineError: If a package is missing.
        InputError: If DeepSpeed's configuration cannot be read.
        DataError: If the stream cannot go on where the checkpoint was.
    """
    spec = launch.spec
    set_seed(spec.training.seed)
    count = ContinueTokenCount()
    held_out = material.held_out
    # Where the memory did not suffice for the training's batch, an evaluation must not take more.
    small = spec.training.batch_size if "batch_size" in launch.overrides else None
    zero = _deepspeed(launch, kernels)
    folder, name, parallelism = launch.session.checkpoints_dir, launch.job.name, launch.parallelism
    # Before the model is loaded: what shares the weights out must be known by then.
    args = training_arguments(spec, machine, kernels, folder, name, small, parallelism=parallelism, deepspeed=zero)
    loaded, lora = assemble.load_base(spec, base, kernels, spread=parallelism == "device_map")
    if parallelism == "fsdp":
        allow_sharding_on_cpu()
    trainer = Trainer(
        model=loaded,
        args=args,
        train_dataset=material.dataset,
        # Rows of like length share a batch: the loss is exact either way, and less is spent on padding.
        eval_dataset=None if held_out is None else _evened(_by_length(held_out.dataset), args),
        processing_class=tokenizer,
        peft_config=lora,
        callbacks=[count, *_callbacks(launch, material)],
    )
    count.trainer = trainer
    if spec.checkpoint.asynchronous:
        writer = BackgroundWriter()
        trainer.write_in_background(writer)
        launch.session.before_manifest.append(writer.settle)
    if material.stream is not None:
        _open_stream(launch, trainer, material.stream)
    return trainer


def _deepspeed(launch: Launch, kernels: hardware.Kernels) -> dict[str, Any] | None:
    if launch.parallelism != "deepspeed":
        return None
    deepspeed.require()
    return deepspeed.configuration(launch.spec.training, kernels.compute, launch.job.inputs)


def _callbacks(launch: Launch, material: Material) -> list[TrainerCallback]:
    spec, callbacks = launch.spec, list[TrainerCallback]()
    if material.stream is not None:
        callbacks.append(StreamEpoch())
    callbacks += attach.callbacks_for_job(launch.folder.root)
    if spec.checkpoint.compress == "zstd":
        folder = launch.folder.root
        callbacks.append(Compress(lambda name: name in kept_by_others(folder, ("uploading",))))
    callbacks.append(WatchDivergence(spec.on_nan, launch.session))
    stopping = spec.training.early_stopping
    if stopping is not None:
        callbacks.append(StopWhenWorse(stopping.patience, stopping.threshold))
    if "tensorboard" in spec.training.report_to and launch.session.leads:
        callbacks.append(tensorboard(launch.folder.root / "tensorboard"))
    return callbacks


def predict(
    launch: Launch, trainer: Trainer, tokenizer: PreTrainedTokenizerBase, held_out: Portion | None, encoder: Encoder
) -> None:
    """Let the trainer answer held-out prompts at its evaluations, if the spec wants that."""
    wanted = launch.spec.predictions
    if wanted is None or not wanted.enabled:
        return
    questions = ask(launch, held_out, encoder, trainer, wanted.sample_count, wanted.max_new_tokens)
    callback = Predict(wanted, launch.journal)
    callback.ask = lambda: samples.answer(trainer, tokenizer, questions, wanted.max_new_tokens)
    trainer.add_callback(callback)


def ask(
    launch: Launch, held_out: Portion | None, encoder: Encoder, trainer: Trainer, count: int, max_new_tokens: int
) -> list[samples.Question]:
    """Choose prompts that leave room for an answer."""
    if not count or held_out is None:
        return []
    context = getattr(trainer.model.config.get_text_config(), "max_position_embeddings", None)
    room = (context or launch.spec.training.max_seq_length) - max_new_tokens
    return samples.choose_questions(held_out, encoder, count, room)


def _open_stream(launch: Launch, trainer: Trainer, stream: SampleStream) -> None:
    args, resume = trainer.args, launch.session.resume
    needed = args.max_steps * args.gradient_accumulation_steps * args.train_batch_size * args.world_size
    trainer.train_on_stream(stream, place_of(resume.path if resume else None, stream, needed, launch.journal))


def _by_length(dataset: datasets.Dataset) -> datasets.Dataset:
    lengths = [len(ids) for ids in dataset["input_ids"]]
    return dataset.select(sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True))


def _evened(dataset: datasets.Dataset, args: TrainingArguments) -> datasets.Dataset:
    """Add rows without a token that counts, so that every rank gets as many batches of the same size.

    Otherwise some rows would be given to two ranks and count twice in the loss.
    """
    missing = -len(dataset) % (args.eval_batch_size * args.world_size)
    if args.world_size == 1 or not missing:
        return dataset
    blank = dataset.select([len(dataset) - 1]).map(
        lambda row: {"labels": [_UNCOUNTED] * len(row["labels"])}, features=dataset.features
    )
    return datasets.concatenate_datasets([dataset, *[blank] * missing])
