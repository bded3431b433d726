"""FedProx at the worker: a pull towards the global adapter, so that workers with other data do not drift apart."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tunefleet.workloads.federated.live_adapter import LiveAdapter


class Pull:
    """Adds mu · (w − w_global) to the gradients: what the term mu/2 · ‖w − w_global‖² in the loss would add.

    Source: Li et al., Federated Optimization in Heterogeneous Networks, https://arxiv.org/abs/1812.06127.

    Args:
        live: The adapter that trains; until a version is there, it is pulled to the values that it has now.
        mu: Strength.
    """

    def __init__(self, live: LiveAdapter, mu: float) -> None:
        self._live = live
        self._mu = mu
        self._anchor = {name: parameter.detach().clone() for name, parameter in live.trained.items()}

    def towards(self, values: Mapping[str, torch.Tensor]) -> None:
        """Pull towards another version from now on."""
        for name, anchor in self._anchor.items():
            anchor.copy_(values[name])

    @torch.no_grad()
    def apply(self) -> None:
        """Change the gradients; called when they are whole and clipped, before the optimizer takes them."""
        for name, parameter in self._live.trained.items():
            if parameter.grad is not None:
                parameter.grad.add_(parameter - self._anchor[name], alpha=self._mu)
