"""The secrets that a world uses, none of which may lie in a log, the database, Redis or what jobs have made."""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING, Final

from tests.integration.postgres.process import PASSWORD
from tests.security.scan import find

if TYPE_CHECKING:
    from tests.chaos.world import World

S3_KEY: Final = "the S3 key"
S3_SECRET: Final = "the S3 secret"
PROXY: Final = "the proxy's password"
AGENT: Final = "the agent's key"
TASK: Final = "what a task uses"
HUB: Final = "the Hub's token"
WEBHOOK: Final = "the webhook's secret"
KEPT: Final = frozenset({WEBHOOK})
"""Signs what the server sends, so the database has to hold it."""


def planted() -> dict[str, str]:
    """Return new secrets that a world is given, by name."""
    return {
        S3_KEY: f"AKIA{secrets.token_hex(8).upper()}",
        S3_SECRET: secrets.token_urlsafe(30),
        PROXY: secrets.token_urlsafe(18),
        TASK: secrets.token_urlsafe(24),
        HUB: f"hf_{secrets.token_hex(17)}",
        WEBHOOK: "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode(),
    }


def known(world: World) -> dict[str, str]:
    """Return every secret of a world by name: those it was given, and those it has made itself."""
    keys = sorted((world.folder / "server" / "data" / "keys").glob("*.key"))
    made = {f"the server's {path.stem} key": path.read_text().strip() for path in keys}
    return {**world.secrets, **made, "the database's password": PASSWORD}


def seen(world: World) -> list[str]:
    """Return, in words, where a secret lies in a log, in what jobs have made, in what is stored, or in Redis.

    Args:
        world: All of whose processes have been stopped.
    """
    secrets, data = known(world), world.folder / "server" / "data"
    stored = [path for path in sorted(data.iterdir()) if path.is_dir() and path.name != "keys"]
    database = world.database_url.replace("postgresql://", "postgresql+psycopg://", 1)
    found = find(secrets, [world.logs, *world.results().values(), *stored], redis_url=world.redis.url)
    found += find({name: secrets[name] for name in secrets.keys() - KEPT}, [], database_url=database)
    return [f"{each.secret} is in {each.place}, as {each.form}" for each in found]
