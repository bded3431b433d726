"""The agent's name: given, or made once and kept."""

from __future__ import annotations

import logging
import re
import secrets

from tunefleet.agent.verbs import write_private
from tunefleet.errors import MachineError
from tunefleet.settings import AgentSettings

logger = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9_.-]{10,80}")


def agent_id(settings: AgentSettings) -> str:
    """Return the name that the backend knows this agent by; `agent_` and 16 hex digits unless it is given.

    Raises:
        MachineError: If the file that keeps it cannot be used.
    """
    if settings.agent_id:
        return settings.agent_id
    path = settings.agent_id_file
    try:
        if path.exists():
            kept = path.read_text(encoding="utf-8").strip()
            if not _ID.fullmatch(kept):
                raise MachineError(f"{path} holds no agent id: {kept[:40]!r}.", hint="Delete it, or set AGENT_ID.")
            return kept
        made = f"agent_{secrets.token_hex(8)}"
        write_private(path, f"{made}\n")
    except OSError as error:
        raise MachineError(
            f"The agent's id cannot be kept in {path}: {error.strerror}.",
            hint="Mend the folder's permissions, or set AGENT_ID.",
        ) from error
    logger.info("This agent is %s from now on.", made)
    return made
