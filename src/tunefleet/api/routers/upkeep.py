"""What this server is and keeps, for whoever looks after it."""

from __future__ import annotations

from tunefleet.api.auth import CoreDep, Reader
from tunefleet.api.routing import Router
from tunefleet.orchestrator.ha import servers
from tunefleet.orchestrator.storage import usage_report
from tunefleet.schemas.server_info import PeersView, ServerView, StorageView

router = Router(tags=["server"])


@router.get("/server")
async def show_server(core: CoreDep, who: Reader) -> ServerView:
    """Show what the server is made of: versions, database, where files are kept."""
    return await usage_report.server(core, who)


@router.get("/storage")
async def show_storage(core: CoreDep, who: Reader) -> StorageView:
    """Show how much room the server's data takes, by kind; counted anew every few seconds at most."""
    return await usage_report.storage(core, who)


@router.get("/servers")
async def list_servers(core: CoreDep, who: Reader) -> PeersView:
    """Show the servers that share the database, and which of them leads."""
    return await servers.show(core, who)
