"""Copy of the leader's fleet snapshot, for the servers that follow: live workers and pending reasons.

The copy may be a second old and decides nothing: only the leader places tasks.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from pydantic import TypeAdapter

from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.fleet.cluster_state import MergeWaits
from tunefleet.orchestrator.fleet.presence import Fleet
from tunefleet.orchestrator.ha.leader_election import SEEN
from tunefleet.transport.forward import PEER, Peers, proof

# Served to other servers only.
PATH: Final = "/peer/fleet"
COPY_S: Final = 1.0
_SHARE: Final = 20.0
"""Pause between copies, in multiples of the time that one takes: a large fleet is copied less often."""
_WHOLE: Final = TypeAdapter(Fleet)


def dump(core: ServerContext) -> bytes:
    """Return the leader's fleet snapshot and pending merges as JSON."""
    return _WHOLE.dump_json(
        replace(core.state(Fleet), joins={seq: wait.why for seq, wait in core.state(MergeWaits).by_task.items()})
    )


class Mirror:
    """Copies the leader's fleet snapshot while another server leads."""

    def __init__(self, core: ServerContext) -> None:
        self._core = core
        self._peers = Peers()

    async def run_once(self) -> None:
        """Copy once, then wait for the next copy.

        Raises:
            UnreachableError: If the leader does not respond.
        """
        core, row = self._core, self._core.leading.row
        began, seen = core.clock.monotonic(), core.signals.version(SEEN)
        if core.leading.epoch is None and row.server_id is not None and row.url is not None:
            headers = [(PEER, proof(core.secret, row.epoch))]
            answer = await self._peers.send("GET", row.url, PATH.encode(), headers, None)
            async with answer:
                body = b"".join([piece async for piece in answer.pieces()])
            if answer.status == 200:
                fleet = await asyncio.to_thread(_WHOLE.validate_json, body)
                # The lead may have changed during the request: the answer of a former leader is dropped.
                if core.leading.row.epoch == row.epoch:
                    core.put_state(fleet)
        spent_s = core.clock.monotonic() - began
        await core.signals.wait(SEEN, max(COPY_S, _SHARE * spent_s), seen)

    async def close(self) -> None:
        """Close the connections."""
        await self._peers.close()
