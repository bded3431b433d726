"""`Client` and `AsyncClient`: a server's whole API, typed."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunefleet.client import resources, transfer
from tunefleet.client.connection import resolve
from tunefleet.client.routes import project_routes, workflow_routes
from tunefleet.client.transport import AsyncTransport, Policy, Transport
from tunefleet.client.verb import Awaited, Blocking, Verb


class ServerVerbs:
    """What concerns the server as a whole."""

    info = Verb(workflow_routes.info)
    schema = Verb(workflow_routes.schema)
    login_code = Verb(workflow_routes.login_code)
    prune = Verb(workflow_routes.prune)
    server = Verb(workflow_routes.server)
    storage = Verb(workflow_routes.storage)
    servers = Verb(workflow_routes.servers)
    usage = Verb(project_routes.usage)
    audit = Verb(project_routes.audit)


class Client(ServerVerbs, Blocking):
    """A server's API, synchronously.

        with Client() as client:
            run = client.submit("sft.yaml")
            task = run.wait()
            run.fetch("adapter", "./adapter")

    Args:
        url: The server; by default `TUNEFLEET_URL`, then the one that `tunefleet up` or `tunefleet login` saved.
        key: An API key; by default `TUNEFLEET_KEY`, then the saved one of that server.
        patience_s: How long a call that may be repeated is tried again while the server does not answer.
        refused_s: How long, at most, if it is on this machine and nobody listens there.

    Raises:
        UnreachableError: If no server is known.
        AuthError: If no key is known.
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
        """Submit a document, given by its path, its text or its content; local files that it names are uploaded.

        Args:
            source: Path of the document, its text, or what it says as a mapping.
            overrides: Dotted path below `spec` → value, to change before submitting.
            idempotency_key: The same key gets the first answer again.
            strict: Refuse a task that no present worker could ever run.
            wait: Return only when the task is final.
            on_progress: Told how far uploads are.

        Raises:
            SpecError: If the document is wrong; every fault is listed.
            InputError: If a file that it names is not there.
        """
        from tunefleet.client.submission import submit

        flow = submit(
            source, overrides=overrides, idempotency_key=idempotency_key, strict=strict, on_progress=on_progress
        )
        run = resources.Run(self.transport, self.transport.run(flow))
        if wait:
            run.wait()
        return run


class AsyncClient(ServerVerbs, Awaited):
    """A server's API, asynchronously; arguments and errors are those of `Client`.

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
        """Submit a document; see `Client.submit`."""
        from tunefleet.client.submission import submit

        flow = submit(
            source, overrides=overrides, idempotency_key=idempotency_key, strict=strict, on_progress=on_progress
        )
        run = resources.AsyncRun(self.transport, await self.transport.run(flow))
        if wait:
            await run.wait()
        return run
