"""The server of a simulation: a temporary one, or that of `--url`."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.cli.options import chosen_url
from tunefleet.client import Client
from tunefleet.client.connection import Connection, resolve
from tunefleet.errors import ForbiddenError, InputError
from tunefleet.settings import ServerSettings, WorkerSettings, load
from tunefleet.simulation.load_run import Load, Progress
from tunefleet.simulation.plan import Plan, ServerConnection
from tunefleet.simulation.redis_process import program, redis_server
from tunefleet.simulation.sampling import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator

# How long an idle exchange is held depends on this setting: a day gives the longest hold time.
_NO_RENEWALS_LOST_AFTER_S: Final = 86_400


class SimulationTarget:
    """Provides the server for each load.

    Args:
        url: The server; None starts a temporary one for each load.

    Raises:
        TunefleetError: If the options do not fit together.
    """

    def __init__(self, *, link: Literal["http", "redis"], renewals: bool, url: str | None, key: str | None) -> None:
        self._link, self._renewals = link, renewals
        named = url or chosen_url.get()
        self._external: Connection | None = None
        if named is not None:
            self._external = _require_admin(resolve(named, key))
            if not renewals:
                raise InputError(
                    "The renewal interval is a setting of the server.", hint="Omit --no-renewals or --url."
                )
        elif key is not None:
            raise InputError("--key needs a server.", hint="Add --url, or omit --key.")
        elif link == "redis":
            program()

    @asynccontextmanager
    async def running(
        self, plan: Plan, processes: int | None, on_progress: Callable[[Progress], None]
    ) -> AsyncIterator[Load]:
        """Provide a server while the body runs; yields the load to run."""
        with ExitStack() as stack:
            if self._external is not None:
                yield Load(
                    plan, self._external_connection(self._external), admin_key=self._external.key or "",
                    machine=Machine(), tidy=True, processes=processes, on_progress=on_progress,
                )  # fmt: skip
                return
            connection, machine, key = await asyncio.to_thread(stack.enter_context, self._own())
            yield Load(
                plan,
                connection,
                admin_key=key,
                machine=machine,
                renewals=self._renewals,
                processes=processes,
                on_progress=on_progress,
            )

    def _external_connection(self, connection: Connection) -> ServerConnection:
        settings = load(WorkerSettings)
        if self._link == "redis" and settings.redis_url is None:
            raise InputError(
                "The Redis URL of the server is unknown.", hint="Set TUNEFLEET_REDIS_URL, as for its workers."
            )
        redis_url = settings.redis_url.get_secret_value() if settings.redis_url and self._link == "redis" else None
        return ServerConnection(
            url=connection.url, key=connection.key or "", link=self._link, redis_url=redis_url, topic=settings.topic,
            redis_prefix=settings.redis_prefix,
        )  # fmt: skip

    @contextmanager
    def _own(self) -> Iterator[tuple[ServerConnection, Machine, str]]:
        _reject_shared_storage()
        folder = Path(tempfile.mkdtemp(prefix="tunefleet-simulate-"))
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            # Only warnings are logged: log lines per task would be part of the measurement.
            environment = {"HF_HUB_OFFLINE": "1", "TUNEFLEET_LOG_LEVEL": "WARNING"}
            redis_url = None
            if self._link == "redis":
                redis_url = environment["TUNEFLEET_REDIS_URL"] = stack.enter_context(redis_server(folder, _free_port()))
            if not self._renewals:
                environment["TUNEFLEET_LOST_AFTER_S"] = str(_NO_RENEWALS_LOST_AFTER_S)
            data = folder / "data"
            fleet = LocalFleet(
                data, host="127.0.0.1", port=_free_port(), workers=0, environment=environment, save_client=False
            )
            stack.enter_context(fleet)
            key = (data / "keys" / "worker.key").read_text(encoding="utf-8").strip()
            topics = load(ServerSettings)
            connection = ServerConnection(
                url=fleet.url, key=key, link=self._link, redis_url=redis_url, topic=topics.topic,
                redis_prefix=topics.redis_prefix,
            )  # fmt: skip
            yield connection, Machine(fleet.pid("server"), data, redis_url), fleet.key


def _reject_shared_storage() -> None:
    """Reject settings that would make the simulation write to the storage of real tasks."""
    settings = load(ServerSettings)
    named = {
        "TUNEFLEET_DATABASE_URL": settings.database_url,
        "TUNEFLEET_ARTIFACTS": settings.artifacts,
        "TUNEFLEET_REDIS_URL": settings.redis_url,
        "TUNEFLEET_SHARED_TOKEN": settings.shared_token,
    }
    found = [name for name, value in named.items() if value is not None]
    if found:
        raise InputError(
            f"{', '.join(found)} is set: the simulation's server would share it with a real server.",
            hint=f"Unset it (env -u {found[0]} tunefleet simulate …), or test that server with --url.",
        )


def _require_admin(connection: Connection) -> Connection:
    with Client(connection.url, connection.key, patience_s=2.0, refused_s=1.0) as client:
        info = client.info()
    if info.role != "admin":
        raise ForbiddenError(
            f"A simulation on {connection.url} needs an admin key; this key is {info.role or 'unknown there'}.",
            hint="Set one with --key, or omit --url for a temporary server.",
        )
    return connection


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found
