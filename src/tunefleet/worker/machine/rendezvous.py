"""Rendezvous of the nodes of a multi-worker training, and how a node differs from a single-worker job."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from importlib.metadata import version

from tunefleet.errors import MachineError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.schemas.job_folder import GangJob
from tunefleet.schemas.worker_link import Finish, Offer, release_of
from tunefleet.settings import WorkerSettings
from tunefleet.transport.base import address_towards
from tunefleet.worker.machine.probe import torch_version


@dataclass(frozen=True, slots=True)
class RendezvousAddress:
    """Address at which other workers reach this machine.

    Args:
        ports: First and last port that it may listen on; 0 for any free port.
    """

    address: str | None = None
    ports: tuple[int, int] = (0, 0)
    join_s: float = 300.0

    @classmethod
    def of(cls, settings: WorkerSettings) -> RendezvousAddress:
        """Build it from the settings of a worker."""
        first, _, last = settings.gang_ports.partition("-")
        address = settings.gang_address or address_towards(settings.server_url)
        return cls(address, (int(first), int(last or first)), settings.gang_join_s)

    def choose_endpoint(self) -> str:
        """Choose a rendezvous endpoint on this machine: host and port.

        Raises:
            MachineError: If no address is known, or no port of the range is free.
        """
        if self.address is None:
            raise MachineError(
                "This machine has no address that other workers can reach.",
                hint="Set TUNEFLEET_GANG_ADDRESS to it.",
            )
        for port in range(self.ports[0], self.ports[1] + 1):
            with socket.socket() as probe:
                # A port of a gang that has just ended may still be in TIME_WAIT.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((self.address, port))
                except OSError:
                    continue
                return f"{self.address}:{probe.getsockname()[1]}"
        raise MachineError(
            f"No port of {self.ports[0]}-{self.ports[1]} is free at {self.address}.",
            hint="Set TUNEFLEET_GANG_PORTS and TUNEFLEET_GANG_ADDRESS to ports and an address of this machine.",
        )

    def job(self, offer: Offer, point: str | None) -> GangJob | None:
        """Return the gang settings of a job; None if it has no gang.

        Raises:
            MachineError: If this machine cannot be a node of the gang.
        """
        node = offer.gang
        if node is None:
            return None
        mine = release_of(version("tunefleet"), torch_version())
        if node.release != mine:
            raise MachineError(
                f"This worker has {mine or 'no torch'}, but the first node has {node.release or 'no torch'}: all "
                "nodes of a training run need the same versions.",
                hint="Install the same versions on both.",
            )
        host, _, port = (point or "").rpartition(":")
        if not port.isdecimal() or self.address is None:
            raise MachineError("The rendezvous endpoint of the training run is unknown.")
        return GangJob(
            id=node.id, rank=node.rank, nodes=node.nodes, host=host, port=int(port), address=self.address,
            join_s=self.join_s,
        )  # fmt: skip


def is_member(offer: Offer) -> bool:
    """Whether an attempt is a node other than the first: it reports and delivers nothing."""
    return offer.gang is not None and offer.gang.rank > 0


def as_node(offer: Offer, finish: Finish) -> Finish:
    """Return an end with `lost_peer` set if the node only failed because of another node."""
    if offer.gang is None or finish.outcome != "failed":
        return finish
    # NCCL aborts a process whose peers do not respond.
    aborted = finish.reason == TaskReason.CRASHED and "SIGABRT" in (finish.error or "")
    return finish.model_copy(update={"lost_peer": aborted or finish.reason == TaskReason.NETWORK})


def released(offer: Offer, why: str) -> Finish:
    """Return the end of a node that cannot continue alone: the gang is rescheduled."""
    return Finish(token=offer.token, outcome="released", reason=TaskReason.RELEASED, error=why)
