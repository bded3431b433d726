"""`Client` and `AsyncClient`: the typed API of a server."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunefleet.client import resources, transfer
from tunefleet.client.connection import resolve
from tunefleet.client.routes import administration_routes, workflow_routes
from tunefleet.client.transport import AsyncTransport, Policy, Transport
from tunefleet.client.verb import ApiMethod, Awaited, Blocking
from tunefleet.schemas.sweep import SweepDetail


class ServerVerbs:
    """Methods that concern the server as a whole."""

    info = ApiMethod(workflow_routes.info)
    schema = ApiMethod(workflow_routes.schema)
    login_code = ApiMethod(workflow_routes.login_code)
    prune = ApiMethod(workflow_routes.prune)
    server = ApiMethod(workflow_routes.server)
    storage = ApiMethod(workflow_routes.storage)
    servers = ApiMethod(workflow_routes.servers)
    usage = ApiMethod(administration_routes.usage)
    audit = ApiMethod(administration_routes.audit)


class Client(ServerVerbs, Blocking):
    """A server's API, synchronous.

        with Client() as client:
            run = client.submit("sft.yaml")
            task = run.wait()
            run.fetch("adapter", "./adapter")

    Args:
        url: URL of the server. Default: `TUNEFLEET_URL`, then the one that `tunefleet up` or `tunefleet login` saved.
        key: API key. Default: `TUNEFLEET_KEY`, then the saved key of that server.
        patience_s: Seconds to retry a repeatable call while the server does not respond.
        refused_s: Upper limit of `patience_s` if the server is on this machine and no process listens on its port.

    Raises:
        UnreachableError: If no server is configured.
        AuthError: If no key is configured.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        patience_s: float = 10.0,
        refused_s: float | None = None,
    ) -> None:
        super().__init__(Transport(resolve(url, key), Policy(patience_s=patience_s, refused_s=refused_s)))
        self.workflows = resources.Workflows(self.transport)
        self.tasks = resources.Tasks(self.transport)
        self.events = resources.Events(self.transport)
        self.artifacts = self.data = resources.Artifacts(self.transport)
        self.workers = resources.Workers(self.transport)
        self.keys = resources.Keys(self.transport)
        self.projects = resources.Projects(self.transport)
        self.notifications = resources.Notifications(self.transport)
        self.federations = resources.Federations(self.transport)
        self.campaigns = resources.Campaigns(self.transport)
        self.models = resources.Models(self.transport)
        self.endpoints = resources.Endpoints(self.transport)
        self.sweeps = resources.Sweeps(self.transport)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The server's URL."""
        return self.transport.connection.url

    def close(self) -> None:
        """Close the connections."""
        self.transport.close()

    def submit(
        self,
        source: Path | str | Mapping[str, Any],
        *,
        overrides: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        strict: bool = False,
        wait: bool = False,
        on_progress: transfer.OnProgress = transfer.ignore_progress,
    ) -> resources.Run:
        """Submit a workflow file, given as a path, text or mapping, and upload the local files it refers to.

        Args:
            source: Path of the workflow file, its text, or its content as a mapping.
            overrides: Fields of `spec` to change before submitting: dotted path → value.
            idempotency_key: Repeating the call with the same key returns the first response.
            strict: Refuse a task that none of the current workers can run.
            wait: Wait until the task is final.
            on_progress: Called with the progress of uploads.

        Raises:
            SpecError: If the workflow file is invalid; lists every error.
            InputError: If a file that it names does not exist.
        """
        from tunefleet.client.submission import submit

        flow = submit(
            source, overrides=overrides, idempotency_key=idempotency_key, strict=strict, on_progress=on_progress
        )
        run = resources.Run(self.transport, self.transport.run(flow))
        if wait:
            run.wait()
        return run

    def sweep(
        self,
        source: Path | str | Mapping[str, Any],
        *,
        overrides: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        on_progress: transfer.OnProgress = transfer.ignore_progress,
    ) -> SweepDetail:
        """Create a sweep from a workflow file with `sweep`; arguments and errors are those of `submit`."""
        from tunefleet.client.submission import submit_sweep

        return self.transport.run(
            submit_sweep(source, overrides=overrides, idempotency_key=idempotency_key, on_progress=on_progress)
        )


class AsyncClient(ServerVerbs, Awaited):
    """A server's API, asynchronous; arguments and errors are those of `Client`.

    async with AsyncClient() as client:
        run = await client.submit("sft.yaml")
        async for point in run.follow_metrics():
            print(point.step, point.values)
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        patience_s: float = 10.0,
        refused_s: float | None = None,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        found = replace(resolve(url, key), trust=trust)
        super().__init__(AsyncTransport(found, Policy(patience_s=patience_s, refused_s=refused_s)))
        self.workflows = resources.AsyncWorkflows(self.transport)
        self.tasks = resources.AsyncTasks(self.transport)
        self.events = resources.AsyncEvents(self.transport)
        self.artifacts = self.data = resources.AsyncArtifacts(self.transport)
        self.workers = resources.AsyncWorkers(self.transport)
        self.keys = resources.AsyncKeys(self.transport)
        self.projects = resources.AsyncProjects(self.transport)
        self.notifications = resources.AsyncNotifications(self.transport)
        self.federations = resources.AsyncFederations(self.transport)
        self.campaigns = resources.AsyncCampaigns(self.transport)
        self.models = resources.AsyncModels(self.transport)
        self.endpoints = resources.AsyncEndpoints(self.transport)
        self.sweeps = resources.AsyncSweeps(self.transport)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def url(self) -> str:
        """The server's URL."""
        return self.transport.connection.url

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()

    async def submit(
        self,
        source: Path | str | Mapping[str, Any],
        *,
        overrides: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        strict: bool = False,
        wait: bool = False,
        on_progress: transfer.OnProgress = transfer.ignore_progress,
    ) -> resources.AsyncRun:
        """Submit a workflow file; see `Client.submit`."""
        from tunefleet.client.submission import submit

        flow = submit(
            source, overrides=overrides, idempotency_key=idempotency_key, strict=strict, on_progress=on_progress
        )
        run = resources.AsyncRun(self.transport, await self.transport.run(flow))
        if wait:
            await run.wait()
        return run

    async def sweep(
        self,
        source: Path | str | Mapping[str, Any],
        *,
        overrides: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        on_progress: transfer.OnProgress = transfer.ignore_progress,
    ) -> SweepDetail:
        """Create a sweep from a workflow file with `sweep`; see `Client.sweep`."""
        from tunefleet.client.submission import submit_sweep

        return await self.transport.run(
            submit_sweep(source, overrides=overrides, idempotency_key=idempotency_key, on_progress=on_progress)
        )
