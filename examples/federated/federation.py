"""One federation of the proof: created on the server, with its workers started and its versions fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

from plan import Address, Regime
from processes import Crew, Server

from tunefleet import FederatedClient
from tunefleet.federation import LayerReport, aggregate, update_in
from tunefleet.federation.aggregation.strategy import product_error
from tunefleet.schemas.federated import VersionDetail
from tunefleet.spec.options.federation_options import FederationSpec, StrategySpec

AVERAGE_S = 600.0


@dataclass(frozen=True, slots=True)
class Stage:
    """The environment that the federations share.

    Args:
        server: Knows the federations.
        crew: Trains.
        regime: How.
        out: For files.
        rows: Held-out rows that are measured on.
    """

    server: Server
    crew: Crew
    regime: Regime
    out: Path
    rows: int


@dataclass
class Federation:
    """A federation and its workers' processes.

    Args:
        stage: Where.
        name: Of it, and of its folder.
        strategy: How the server averages.
        seed: Of all workers.
        spec: What else the server is to know.
        rounds: After so many it is complete.
    """

    stage: Stage
    name: str
    strategy: str
    seed: int
    rounds: int
    spec: Mapping[str, Any] = field(default_factory=dict)
    processes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with self.stage.server.client() as client:
            asked = {"name": self.name, "strategy": {"name": self.strategy}, "rounds": self.rounds, **self.spec}
            made = client.federations.create(FederationSpec.model_validate(asked))
        self.address = Address(self.stage.server.url, made.id, made.token)
        self.folder = self.stage.out / self.name

    def start(self, worker: str, rows_of: str | None = None, factor: float = 1.0) -> None:
        """Start or restart a worker; see `arms.together`."""
        given = (worker, rows_of or worker, self.stage.regime, self.seed, self.folder / worker, self.address, factor)
        self.processes[worker] = self.stage.crew.start(f"{self.name}-{worker}", "together", *given)

    def run(self, workers: Sequence[str]) -> None:
        """Start workers, and wait for them."""
        for worker in workers:
            self.start(worker)
        self.wait(workers)

    def wait(self, workers: Sequence[str]) -> None:
        """Wait until workers have finished training.

        Raises:
            SystemExit: If one of them failed; its log says why.
        """
        left = {self.processes[worker].sentinel: worker for worker in workers}
        while left:
            # The first failure ends the run: the other workers would wait for it.
            for sentinel in connection.wait(list(left)):
                worker = left.pop(sentinel)
                self.processes[worker].join()
                if self.processes[worker].exitcode != 0:
                    logs = self.stage.out / "logs"
                    raise SystemExit(f"{worker} of {self.name} failed: see the end of its log in {logs}.")

    def version(self, number: int) -> Path:
        """Wait for a version of the global adapter, and fetch it."""
        name, token = self.address.federation, self.address.token
        with FederatedClient(self.address.url, name, "onlooker", token) as client:
            newest = client.newest(after=number - 1, wait_s=AVERAGE_S)
            if newest is None:
                raise SystemExit(f"{self.name} has no version {number} after {AVERAGE_S:.0f} s.")
            return client.download(client.version(number), self.folder)

    def reported(self, number: int) -> VersionDetail:
        """Return the server's record of a version."""
        with FederatedClient(self.address.url, self.address.federation, "onlooker", self.address.token) as client:
            return client.version(number)

    def errors(self, number: int) -> tuple[float, float]:
        """Compare a version, and the plain average of the same updates, with the exact average of their products.

        Returns:
            Both distances, over all layers, divided by the norm of the exact average.
        """
        step = str(number * self.stage.regime.sync_every_steps)
        counted = {each.worker: each for each in self.reported(number).contributions}
        updates = [
            update_in(self.folder / worker / "updates" / step, worker=worker, num_examples=each.num_examples)
            for worker, each in counted.items()
        ]
        weights = {worker: each.weight for worker, each in counted.items()}
        plain = self.folder / "plain" / step
        plain.mkdir(parents=True, exist_ok=True)
        aggregate(updates, StrategySpec(name="fedavg"), into=plain)
        ours, theirs = (
            product_error(updates, weights, update_in(folder, worker="average", num_examples=1))
            for folder in (self.version(number), plain)
        )
        return over_all_layers(ours), over_all_layers(theirs)


def over_all_layers(found: Mapping[str, LayerReport]) -> float:
    """Return one error for all layers, as the server reports it."""
    true = sum(layer.norm**2 for layer in found.values())
    apart = sum((layer.norm * layer.error) ** 2 for layer in found.values())
    return float((apart / true) ** 0.5)
