"""A common beginning: workers that start from different random factors average apples and pears.

PEFT draws one factor of each pair at random and sets the other to zero. The model is the same for every draw, but the
mean of factors is not: workers that all begin with one draw stay close to each other, those that do not lose most of
what they have learnt in the first average.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import nn

from tunefleet.workloads.federated.live_adapter import LiveAdapter

_SLOPE = math.sqrt(5)


@torch.no_grad()
def begin_alike(live: LiveAdapter, federation: str) -> bool:
    """Draw an untouched adapter anew, from a seed that all workers of a federation have; it still changes nothing.

    Args:
        live: The adapter that is about to be trained.
        federation: What the seed is made of.

    Returns:
        False if it has been trained already, or begins in a way of its own: then it is left as it is.
    """
    way = getattr(live.config, "init_lora_weights", True)
    pairs = [(name, name.replace("lora_A.", "lora_B.")) for name in live.tensors if "lora_A." in name]
    alike = way is True or way == "gaussian"
    if not pairs or not alike or any(torch.any(live.tensors[b] != 0) for _, b in pairs if b in live.tensors):
        return False
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(federation.encode()).digest()[:7]))
    for name, _ in pairs:
        # On the CPU: a GPU would draw other numbers.
        drawn = torch.empty(live.tensors[name].shape)
        if way is True:
            nn.init.kaiming_uniform_(drawn, a=_SLOPE, generator=generator)
        else:
            nn.init.normal_(drawn, std=1 / drawn.shape[0], generator=generator)
        live.tensors[name].copy_(drawn)
    return True
