"""What a training takes at the peak of a step, from the sizes of its model. Pure: arithmetic, and no tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from tunefleet.spec import LoraSpec
from tunefleet.spec.options.adapter import QuantizationSpec
from tunefleet.spec.options.training_options import CommonTrainingSpec

_OPTIMIZER_BYTES = {"adamw_8bit": 2, "paged_adamw_8bit": 2, "paged_adamw_32bit": 8, "adafactor": 1, "sgd": 0}


@dataclass(frozen=True, slots=True)
class Shape:
    """What the figures are made from.

    Args:
        weights: Parameters of the model.
        linear_weights: Those that quantisation compresses.
        trained: Parameters that are trained.
        layers: Blocks of the model.
        intermediate: Width inside a block.
        vocabulary: Tokens that the model knows.
    """

    weights: int
    linear_weights: int
    trained: int
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes at the peak of a training step.

    Args:
        correction: What earlier trainings of this kind took, divided by their sums.
    """

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int
    reference_bytes: int = 0
    value_model_bytes: int = 0
    correction: float = 1.0

    @property
    def raw_bytes(self) -> int:
        """The sum of the parts."""
        parts = (self.weights_bytes, self.gradients_bytes, self.optimizer_bytes)
        return sum(parts) + self.activations_bytes + self.logits_bytes + self.reference_bytes + self.value_model_bytes

    @property
    def total_bytes(self) -> int:
        """The corrected sum."""
        return round(self.raw_bytes * self.correction)


@dataclass(frozen=True, slots=True)
class Load:
    """What a training does with a row of its batch.

    Args:
        sequences: That go through the model at once.
        reference: Whether an untrained copy of the model judges them, too.
        value_model: Whether a second model of its size is trained beside it.
    """

    sequences: int = 1
    reference: bool = False
    value_model: bool = False


PLAIN: Final = Load()


class Planned(Protocol):
    """What of a spec the figures are made from."""

    @property
    def training(self) -> CommonTrainingSpec:
        """Batch, length, optimizer."""

    @property
    def adapter(self) -> LoraSpec | None:
        """The adapter that is trained; null if all weights are."""

    @property
    def quantized(self) -> QuantizationSpec | None:
        """In how many bits the base model is loaded; null if as it is."""


def estimate(
    shape: Shape,
    spec: Planned,
    compute: str,
    length: int,
    *,
    liger: bool = False,
    labelled: float = 1.0,
    correction: float = 1.0,
    load: Load = PLAIN,
) -> Estimate:
    """Say what a training takes.

    Args:
        spec: Batch, optimizer, quantisation.
        compute: The type of the arithmetic, such as `bfloat16`.
        length: Tokens of the longest sequence.
        liger: Whether Liger's kernels compute the loss.
        labelled: Share of the tokens that have a label, if only those are scored.
        correction: Learnt from earlier trainings.
        load: What is done with a row.
    """
    training = spec.training
    width = 4 if compute == "float32" else 2
    tokens = training.batch_size * load.sequences * length
    # What a block keeps for the way back: inputs and outputs of its attention and of its feed-forward part.
    block = tokens * (12 * shape.hidden + 4 * shape.intermediate) * width
    kept = tokens * shape.hidden * width
    checkpointed = training.gradient_checkpointing
    # The logits and their gradient, in float32; Liger's loss never makes them whole.
    logits = 0 if liger else round(2 * labelled * tokens * shape.vocabulary * 4)
    optimizer = _OPTIMIZER_BYTES.get(training.optim or "", 8)
    # Never quantised.
    value_weights = 4 * shape.weights if spec.adapter is None else width * shape.weights + 4 * shape.trained
    return Estimate(
        weights_bytes=_weights(shape, spec, width),
        gradients_bytes=4 * shape.trained,
        optimizer_bytes=optimizer * shape.trained,
        activations_bytes=shape.layers * kept + block if checkpointed else shape.layers * block,
        logits_bytes=logits,
        reference_bytes=width * shape.weights if load.reference else 0,
        value_model_bytes=value_weights + (4 + optimizer) * shape.trained if load.value_model else 0,
        correction=correction,
    )


def _weights(shape: Shape, spec: Planned, width: int) -> int:
    if spec.adapter is None:
        return 4 * shape.weights
    if spec.quantized is None:
        return width * shape.weights + 4 * shape.trained
    # Half a byte and its share of the scales.
    each = 0.56 if spec.quantized.load_in_4bit else 1.05
    return round(each * shape.linear_weights) + width * (shape.weights - shape.linear_weights) + 4 * shape.trained
