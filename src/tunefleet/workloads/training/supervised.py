"""What TRL's SFT trainer takes beside the common training arguments."""

from __future__ import annotations

from trl import SFTConfig

from tunefleet.spec import TrainingTaskSpec
from tunefleet.workloads.training.arguments import Setting, common_arguments


def supervised_arguments(spec: TrainingTaskSpec, setting: Setting) -> SFTConfig:
    """Build the arguments.

    Raises:
        MachineError: If a tracker or optimizer needs a package that is not installed.
    """
    training, kernels = spec.training, setting.kernels
    return SFTConfig(
        **common_arguments(spec, setting),
        train_sampling_strategy="group_by_length" if training.group_by_length else "random",
        neftune_noise_alpha=training.neftune_noise_alpha,
        # Rows come tokenised, cut and packed; only the collator needs to know.
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        packing=training.packing,
        padding_free=training.packing or (kernels.varlen and training.batch_size > 1),
        include_num_input_tokens_seen="non_padding",
        # Goes into the config of the delivered model. Training itself never asks for the cache.
        use_cache=True,
        # A stream goes to its place by itself.
        ignore_data_skip=spec.data.streaming,
    )
