"""Builds the trainer of a PPO launch: models, arguments, callbacks."""

from __future__ import annotations

from typing import Any

import datasets
import torch
from peft import LoraConfig, TaskType, get_peft_model, inject_adapter_in_model
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase, set_seed
from transformers.utils import logging
from trl.experimental.ppo import PPOConfig

from tunefleet.errors import InputError, ModelError
from tunefleet.spec import LoraSpec, PpoSpec
from tunefleet.workloads.common.base_model import Source, loading_error
from tunefleet.workloads.ppo.reward_model import RewardModel
from tunefleet.workloads.ppo.setup import Plan, Prompts, answer_tokens, temperature
from tunefleet.workloads.ppo.trainer import Trainer
from tunefleet.workloads.training.arguments import common_arguments
from tunefleet.workloads.training.callbacks import common_callbacks
from tunefleet.workloads.training.launch import Launch
from tunefleet.workloads.training.model import assembly, hardware
from tunefleet.workloads.training.model import lora as adapter
from tunefleet.workloads.training.model.hardware import Kernels
from tunefleet.workloads.training.model.lora import ALL_LINEAR
from tunefleet.workloads.training.setup import arguments_context, enable_async_checkpoints


def check(launch: Launch[PpoSpec]) -> None:
    """Check that the spec needs nothing this trainer does not support.

    Raises:
        InputError: If it does.
    """
    if launch.parallelism != "ddp":
        raise InputError(
            f"PPO cannot train with {launch.parallelism}: each process needs the full model.",
            hint="Remove `training.deepspeed` and `training.parallelism`, or train an adapter with `lora`.",
        )


def build_trainer(
    launch: Launch[PpoSpec],
    base: assembly.Base,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Prompts,
    reward_model: RewardModel,
    plan: Plan,
    around: tuple[hardware.Hardware, hardware.Kernels],
) -> Trainer:
    """Load the models and build the trainer of a launch."""
    spec = launch.spec
    set_seed(spec.training.seed)
    args = arguments(launch, plan, *around)
    policy = _policy(spec, base, around[1], args)
    trainer = Trainer(
        plan,
        reward_model,
        prompts.train,
        prompts.held_out,
        args=args,
        model=policy,
        ref_model=None,
        value_model=value_model(base.source, around[1], spec.adapter),
        processing_class=tokenizer,
        # TRL's data loader is not used: the plan maps each step to its prompts, which makes resuming exact.
        train_dataset=datasets.Dataset.from_dict({"input_ids": [each.ids for each in prompts.train]}),
        callbacks=common_callbacks(launch),
    )
    enable_async_checkpoints(launch, trainer)
    return trainer


def _policy(spec: PpoSpec, base: assembly.Base, kernels: hardware.Kernels, args: PPOConfig) -> Any:
    """Load the policy; a loaded adapter is added a second time, frozen, as the reference model."""
    policy, lora = assembly.load_base(spec, base, kernels)
    before = adapter.trainable_weights(policy)
    if lora is not None:
        # Added here and not by TRL, which would cast it to bfloat16.
        policy = get_peft_model(policy, lora)
    if base.adapter_folder is not None:
        policy.load_adapter(base.adapter_folder, adapter.REFERENCE, is_trainable=False)
    adapter.train_in_float32(policy, before, autocast=args.bf16 or args.fp16)
    return policy


def arguments(launch: Launch[PpoSpec], plan: Plan, machine: hardware.Hardware, kernels: hardware.Kernels) -> PPOConfig:
    """Build the arguments.

    Raises:
        MachineError: If a tracker or optimizer needs a package that is not installed.
    """
    training = launch.spec.training
    common = common_arguments(launch.spec, arguments_context(launch, machine, kernels))
    best = {"metric_for_best_model": "eval_reward", "greater_is_better": True}
    evaluates = training.eval_strategy != "no"
    return PPOConfig(
        **{
            **common,
            **(best if evaluates else {}),
            "max_steps": plan.steps,
            # A step is one batch; the training loop splits it into forward passes itself.
            "per_device_train_batch_size": plan.rows,
            "gradient_accumulation_steps": 1,
            "torch_empty_cache_steps": 1 if training.optimize_cuda_cache else None,
        },
        total_episodes=plan.steps * plan.rows * plan.world,
        num_mini_batches=training.parts,
        num_ppo_epochs=training.ppo_epochs,
        kl_coef=training.kl_coef,
        temperature=temperature(launch.spec),
        response_length=answer_tokens(launch.spec),
        num_sample_generations=0,
    )


def value_model(source: Source, kernels: Kernels, lora: LoraSpec | None) -> PreTrainedModel:
    """Load the value model.

    Raises:
        ModelError: If the architecture has no value head.
    """
    dtype = kernels.compute if lora is not None else "float32"
    asked: dict[str, Any] = {"revision": source.revision, "trust_remote_code": source.trust_remote_code}
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # it would warn that the head is newly initialized, which is intended
    try:
        model: PreTrainedModel = AutoModelForSequenceClassification.from_pretrained(
            source.path, num_labels=1, dtype=getattr(torch, dtype), attn_implementation=kernels.attention, **asked
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise loading_error("value model", source, error) from error
    finally:
        logging.set_verbosity(verbosity)
    head = getattr(model, "score", None)
    if head is None:
        raise ModelError(f"The architecture of {source.identifier} has no value head, which PPO needs.")
    # Random initial values would add noise to the first advantages; zeros predict nothing.
    torch.nn.init.zeros_(head.weight)
    if lora is None:
        return model
    model.requires_grad_(False)
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        target_modules=ALL_LINEAR if lora.target_modules == ALL_LINEAR else list(lora.target_modules),
        task_type=TaskType.SEQ_CLS,
        use_rslora=lora.use_rslora,
    )
    inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        trained = "lora_" in name or name.startswith("score.")
        parameter.requires_grad_(trained)
        if trained:
            parameter.data = parameter.data.float()
    return model
