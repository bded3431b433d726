"""Workers of a federation that upload tiny adapters, and a server's keeper that a test starts by hand."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.orchestrator.lab import Lab
from tunefleet.db.federations import federation_updates, federation_versions, federations, rounds
from tunefleet.db.federations.federation_updates import UpdateRow
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.federations.rounds import RoundRow
from tunefleet.federation import AdapterFile, read_config
from tunefleet.federation.contract import check, contract_of
from tunefleet.federation.floats import Array
from tunefleet.federation.safetensors_writer import write_tensors
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation import service, versions
from tunefleet.orchestrator.federation.adapter_files import with_archive
from tunefleet.orchestrator.federation.round_scheduler import RoundScheduler
from tunefleet.orchestrator.federation.updates import acceptance
from tunefleet.orchestrator.federation.updates.acceptance import Accepted, ValidatedUpdate
from tunefleet.schemas.api import FileEntry
from tunefleet.schemas.federated import FederationCreated, VersionDetail
from tunefleet.spec.options.federation_options import FederationSpec

RANK, ROWS, COLUMNS = 2, 3, 4
A, B = (f"base_model.model.layer.lora_{side}.weight" for side in "AB")
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "base_model_name_or_path": "tiny",
    "r": RANK,
    "lora_alpha": 4,
    "target_modules": ["layer"],
    "bias": "none",
}


def adapter(value: float) -> dict[str, Array]:
    """An adapter all of whose numbers are one."""
    return {A: np.full((RANK, COLUMNS), value, np.float32), B: np.full((ROWS, RANK), value, np.float32)}


@dataclass
class Party:
    """A federation and its workers.

    Args:
        lab: The server.
        made: The federation.
        folder: Where files are made.
        steps: How far each worker is.
    """

    lab: Lab
    made: FederationCreated
    folder: Path
    steps: dict[str, int] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.made.id

    async def upload(
        self,
        worker: str,
        value: float | Mapping[str, Array],
        *,
        num_examples: int = 1,
        step: int | None = None,
        core: ServerContext | None = None,
        tokenizer: Mapping[str, bytes] | None = None,
        **more: Any,
    ) -> Accepted:
        """Bring an update the way `uploads` does, once its files are there and checked."""
        core = core or self.lab.core
        path = self.folder / f"{worker}.safetensors"
        write_tensors(path, adapter(value) if isinstance(value, float | int) else value)
        entry = await self.lab.upload(self.lab.admin, path.read_bytes())
        texts = {name: await self.lab.upload(self.lab.admin, data) for name, data in (tokenizer or {}).items()}
        self.steps[worker] = step if step is not None else self.steps.get(worker, 0) + 100
        config = read_config(json.dumps(CONFIG).encode())
        row = await self.row()
        with AdapterFile(path) as file:
            contract = contract_of(config, file)
            checked = check(contract, config, file)
        arrived = ValidatedUpdate(
            worker=worker,
            step=self.steps[worker],
            num_examples=num_examples,
            model_digest=entry.digest,
            size_bytes=entry.size_bytes,
            values_digest=checked.digest,
            config=json.dumps(CONFIG),
            checked_against=row.contract,
            contract=contract.to_json(),
            tokenizer={name: text.digest for name, text in texts.items()},
            norm=checked.norm,
        )
        arrived = replace(arrived, **more)
        take = partial(acceptance.accept, arrived=arrived, now=core.clock.wall())
        return await core.write(lambda connection: take(connection, row))

    async def row(self) -> FederationRow:
        found = await self.lab.core.read(lambda connection: federations.by_seq(connection, self.made.number))
        assert found is not None
        return found

    async def round(self, number: int | None = None) -> RoundRow:
        row = await self.row()
        found = await self.lab.core.read(lambda connection: rounds.get(connection, row.seq, number or row.round))
        assert found is not None
        return found

    async def updates(self, number: int) -> list[UpdateRow]:
        read = partial(federation_updates.of_round, federation_seq=self.made.number, number=number)
        return await self.lab.core.read(read)

    async def version(self, number: int | None = None) -> VersionDetail:
        row = await self.row()
        return await versions.get(self.lab.core, self.lab.admin, self.id, number or row.version)

    async def values(self, number: int | None = None) -> dict[str, Array]:
        """Return the numbers of a version's adapter."""
        found = await self.version(number)
        path = self.folder / f"v{found.version}.safetensors"
        path.write_bytes(self.lab.core.blobs.read(found.sha256))
        with AdapterFile(path) as file:
            return {name: file.whole(name) for name in file.tensors}

    async def packed(self, number: int | None = None) -> FileEntry:
        """Return a version's archive, which is made if nobody has asked for it before."""
        row = await self.row()
        read = partial(federation_versions.get, federation_seq=row.seq, version=number or row.version)
        found = await self.lab.core.read(read)
        assert found is not None
        return (await with_archive(self.lab.core, found))[1]

    async def archive(self, number: int | None = None) -> dict[str, bytes]:
        """Return the files of a version's archive."""
        data = self.lab.core.blobs.read((await self.packed(number)).digest)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            return {each.name: tar.extractfile(each).read() for each in tar}  # type: ignore[union-attr]


async def party(lab: Lab, folder: Path, **spec: Any) -> Party:
    """Make a federation."""
    folder.mkdir(exist_ok=True)
    start = spec.pop("start", True)
    made = await service.create(lab.core, lab.admin, FederationSpec.model_validate(spec), start=start)
    return Party(lab, made, folder)


async def keep(core: ServerContext) -> None:
    """Let a server do what its rounds wait for."""
    keeper = RoundScheduler(core)
    try:
        await keeper.start_due()
        await keeper.drain()
    finally:
        await keeper.close()
