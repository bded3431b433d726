"""Where a simulation takes place: on a server of its own, or on one that is named."""

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
from tunefleet.simulation.plan import Meeting, Plan
from tunefleet.simulation.redis_process import program, redis_server
from tunefleet.simulation.sampling import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator

# With this patience an idle worker's exchange is held as long as any may be.
_NO_RENEWALS_LOST_AFTER_S: Final = 86_400


class Site:
    """Makes the place for each load.

    Args:
        url: The server; one of its own for each load if None.

    Raises:
        TunefleetError: If it cannot be as asked for.
    """

    def __init__(self, *, link: Literal["http", "redis"], renewals: bool, url: str | None, key: str | None) -> None:
        self._link, self._renewals = link, renewals
        named = url or chosen_url.get()
        self._there: Connection | None = None
        if named is not None:
            self._there = _admin(resolve(named, key))
            if not renewals:
                raise InputError(
                    "How often workers renew is decided by the server.", hint="Leave out --no-renewals, or --url."
                )
        elif key is not None:
            raise InputError("A key belongs to a server.", hint="Name it with --url, or leave out --key.")
        elif link == "redis":
            program()

    @asynccontextmanager
    async def running(self, plan: Plan, processes: int | None, told: Callable[[Progress], None]) -> AsyncIterator[Load]:
        """Have a server while the body runs; yields the load that is to be driven."""
        with ExitStack() as stack:
            if self._there is not None:
                yield Load(
                    plan, self._meeting_there(self._there), admin_key=self._there.key or "", machine=Machine(),
                    tidy=True, processes=processes, told=told,
                )  # fmt: skip
                return
            meeting, machine, key = await asyncio.to_thread(stack.enter_context, self._own())
            yield Load(
                plan, meeting, admin_key=key, machine=machine, renewals=self._renewals, processes=processes, told=told
            )

    def _meeting_there(self, there: Connection) -> Meeting:
        settings = load(WorkerSettings)
        if self._link == "redis" and settings.redis_url is None:
            raise InputError("The Redis of that server is not known.", hint="Set REDIS_URL, as for its workers.")
        redis_url = settings.redis_url.get_secret_value() if settings.redis_url and self._link == "redis" else None
        return Meeting(
            url=there.url, key=there.key or "", link=self._link, redis_url=redis_url, topic=settings.topic,
            redis_prefix=settings.redis_prefix,
        )  # fmt: skip

    @contextmanager
    def _own(self) -> Iterator[tuple[Meeting, Machine, str]]:
        _refuse_what_is_not_ours()
        folder = Path(tempfile.mkdtemp(prefix="tunefleet-simulate-"))
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            environment = {"HF_HUB_OFFLINE": "1", "LOG_LEVEL": "WARNING"}
            redis_url = None
            if self._link == "redis":
                redis_url = environment["REDIS_URL"] = stack.enter_context(redis_server(folder, _free_port()))
            if not self._renewals:
                environment["TUNEFLEET_LOST_AFTER_S"] = str(_NO_RENEWALS_LOST_AFTER_S)
            data = folder / "data"
            fleet = LocalFleet(
                data, host="127.0.0.1", port=_free_port(), workers=0, environment=environment, save_client=False
            )
            stack.enter_context(fleet)
            key = (data / "keys" / "worker.key").read_text(encoding="utf-8").strip()
            topics = load(ServerSettings)
            meeting = Meeting(
                url=fleet.url, key=key, link=self._link, redis_url=redis_url, topic=topics.topic,
                redis_prefix=topics.redis_prefix,
            )  # fmt: skip
            yield meeting, Machine(fleet.pid("server"), data, redis_url), fleet.key


def _refuse_what_is_not_ours() -> None:
    """Refuse settings that would let a simulation write where real tasks are."""
    settings = load(ServerSettings)
    named = {
        "TUNEFLEET_DATABASE_URL": settings.database_url,
        "TUNEFLEET_ARTIFACTS": settings.artifacts,
        "REDIS_URL": settings.redis_url,
        "ORCHESTRATOR_TOKEN": settings.shared_token,
    }
    found = [name for name, value in named.items() if value is not None]
    if found:
        raise InputError(
            f"{', '.join(found)} is set: a server for the simulation would use what belongs to another.",
            hint=f"Unset it (env -u {found[0]} tunefleet simulate …), or simulate on that server with --url.",
        )


def _admin(there: Connection) -> Connection:
    with Client(there.url, there.key, patience_s=2.0, refused_s=1.0) as client:
        info = client.info()
    if info.role != "admin":
        raise ForbiddenError(
            f"A simulation on {there.url} needs an admin's key; this one is {info.role or 'unknown there'}.",
            hint="Name one with --key, or leave out --url for a server of its own.",
        )
    return there


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found
