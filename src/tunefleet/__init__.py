"""Tunefleet: a self-hosted control plane for fine-tuning language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunefleet.client import AsyncClient as AsyncClient
    from tunefleet.client import Client as Client
    from tunefleet.client.federation.client import FederatedClient as FederatedClient
    from tunefleet.trainer_control.callbacks.standalone_callback import TrainerControlCallback as TrainerControlCallback
    from tunefleet.trainer_control.loop import control as control
    from tunefleet.workloads.federated.callback import FederatedCallback as FederatedCallback

    __version__: str

__all__ = [
    "AsyncClient",
    "Client",
    "FederatedCallback",
    "FederatedClient",
    "TrainerControlCallback",
    "__version__",
    "control",
]


def __getattr__(name: str) -> Any:
    # Looked up on first use: `import tunefleet` stays cheap for the CLI and for a trainer's callback.
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        # Looked up once: to read all the metadata takes milliseconds.
        return globals().setdefault(name, version("tunefleet"))
    if name in {"AsyncClient", "Client"}:
        from tunefleet import client  # noqa: PLC0415

        return getattr(client, name)
    if name == "FederatedClient":
        from tunefleet.client.federation.client import FederatedClient  # noqa: PLC0415

        return FederatedClient
    if name == "FederatedCallback":
        # The only public name that needs torch.
        from tunefleet.workloads.federated.callback import FederatedCallback  # noqa: PLC0415

        return FederatedCallback
    if name == "TrainerControlCallback":
        # Needs the standard library and transformers, and nothing that a foreign environment might lack.
        from tunefleet.trainer_control.callbacks.standalone_callback import TrainerControlCallback  # noqa: PLC0415

        return TrainerControlCallback
    if name == "control":
        from tunefleet.trainer_control.loop import control  # noqa: PLC0415

        return control
    raise AttributeError(f"module 'tunefleet' has no attribute {name!r}")
