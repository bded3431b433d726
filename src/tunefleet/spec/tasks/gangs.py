"""What a training on several workers cannot have, because each of them has a disk and a job folder of its own."""

from __future__ import annotations

from typing import Any, Final

from tunefleet.spec.options.devices import DevicesSpec
from tunefleet.spec.options.resources import ResourcesSpec
from tunefleet.spec.options.trainer import OURS
from tunefleet.spec.tasks.processes import devices_of, process_count

Faults = list[tuple[str, str, str | None]]
_AT: Final = "resources.nodes"
_FULL: Final = "write parallelism: ddp, of which the first node writes the whole checkpoint, or train on one node"


def node_faults(blocks: dict[str, Any]) -> Faults:
    """Find what does not go with several nodes; `blocks` as `faults` of a task kind has them."""
    resources: ResourcesSpec | None = blocks.get("resources")
    training: DevicesSpec | None = blocks.get("training")
    if resources is None or training is None or resources.most_nodes == 1:
        return []
    return [(at, message, hint) for failed, at, message, hint in _checks(resources, training, blocks) if failed]


def _checks(
    resources: ResourcesSpec, training: DevicesSpec, blocks: dict[str, Any]
) -> tuple[tuple[bool, str, str, str], ...]:
    devices = devices_of(resources, training)
    strategy = training.strategy(max(2, process_count(resources, training, devices.count)))
    trainer = blocks.get("trainer")
    checkpoint, data = blocks.get("checkpoint"), blocks.get("data")
    return (
        (
            trainer not in {None, OURS},
            _AT,
            f"the trainer {trainer} starts its processes by itself, on one worker",
            "leave one of them out",
        ),
        (
            strategy in {"fsdp", "deepspeed"},
            _AT,
            f"with {strategy} each node writes its part of a checkpoint on its own disk, and no other node could go on "
            "from that",
            _FULL,
        ),
        (
            strategy == "device_map",
            _AT,
            "parallelism: device_map is one process, on one worker",
            "leave one of them out",
        ),
        (
            bool(getattr(data, "streaming", False)),
            _AT,
            "a stream has one reader",
            "leave data.streaming out, or train on one node",
        ),
        (
            bool(getattr(checkpoint, "asynchronous", False)),
            _AT,
            "checkpoint.asynchronous is for a training of one process",
            "leave one of them out",
        ),
        (
            getattr(checkpoint, "upload", True) is False,
            _AT,
            "checkpoint.upload: false leaves no checkpoint that all nodes could go on from",
            "leave one of them out",
        ),
        (
            bool(getattr(training, "load_best_model_at_end", False)),
            _AT,
            "the best checkpoint lies on the first node alone: training.load_best_model_at_end cannot load it on all",
            "leave one of them out, and resume from the best checkpoint (`tunefleet resume --from best`)",
        ),
        (
            blocks.get("federation") is not None,
            _AT,
            "a federation spreads the training over workers by itself",
            "leave one of them out",
        ),
        (
            devices.everything,
            _AT,
            "training.allow_multi_gpu takes as many GPUs as a worker has, and nodes need the same number each",
            "write resources.hardware.gpu.count",
        ),
    )
