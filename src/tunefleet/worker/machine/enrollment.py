"""Enroll this machine as a worker: exchange a join token for a key, and store it.

The key is generated here and stored before the request; the server receives its hash. So a request whose reply was lost
can be repeated with the same command, and a token that leaks later yields no key.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tunefleet.client.connection import Connection, normalise
from tunefleet.client.routes.workflow_routes import join as exchange
from tunefleet.client.transport import Policy, Transport
from tunefleet.errors import InputError
from tunefleet.schemas.enrollment import JoinReply, JoinRequest
from tunefleet.settings import ProcessSettings, saved_server
from tunefleet.trainer_control.files import read_json, write_json, write_text

_PATIENCE_S: Final = 15.0
_HEAD: Final = "# Written by `tunefleet join`. Anyone who can read this file can act as this worker.\n"


@dataclass(frozen=True, slots=True)
class Enrollment:
    """Result of an enrollment."""

    url: str
    file: Path
    reply: JoinReply


def join(
    settings: ProcessSettings,
    url: str,
    token: str,
    wishes: Mapping[str, str],
    *,
    replace: bool = False,
    patience_s: float = _PATIENCE_S,
) -> Enrollment:
    """Exchange a join token for a key, and store it in `worker.env`, readable by this user only.

    Raises:
        InputError: If the URL is invalid, or this machine is a worker of another server.
        AuthError: If the token is invalid, expired or revoked.
        ConflictError: If another machine has used it.
        UnreachableError: If the server does not respond; the same command may be repeated.
    """
    base, file = normalise(url), settings.joined_file
    _refuse_other_server(file, base, replace=replace)
    kept = [_line(name, value) for name, value in wishes.items()]
    secret = _made_up(settings.home_dir, base, token)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    transport = Transport(Connection(base), Policy(patience_s=patience_s))
    try:
        reply = transport.run(exchange(JoinRequest(token=token, secret_hash=digest, name=socket.gethostname()[:100])))
    finally:
        transport.close()
    found = {"TUNEFLEET_SERVER_URL": base, "TUNEFLEET_WORKER_KEY": secret}
    found |= {"TUNEFLEET_WORKER_ID": reply.worker_id} if reply.worker_id is not None else {}
    found |= {"TUNEFLEET_WORKER_TAGS": ",".join(reply.tags)} if reply.tags is not None else {}
    # dotenv takes the last of two lines with the same name, so the settings of the invitation come last.
    text = "".join([*kept, *(_line(name, value) for name, value in found.items())])
    write_text(file, _HEAD + text, mode=0o600, sync=True)
    return Enrollment(base, file, reply)


def _refuse_other_server(file: Path, base: str, *, replace: bool) -> None:
    before = saved_server(file) if file.is_file() else None
    if before is not None and before != base and not replace:
        raise InputError(
            f"This machine is already a worker of {before}.",
            hint="Stop that worker and repeat the command with --replace, or join with a different TUNEFLEET_HOME.",
        )


def _made_up(home: Path, base: str, token: str) -> str:
    """Return the key of the last request with this token, or generate and store a new one."""
    file, named = home / "join.json", hashlib.sha256(token.encode()).hexdigest()
    before = read_json(file)
    if before is not None and (before.get("url"), before.get("token")) == (base, named):
        return str(before["key"])
    secret = f"tf_{secrets.token_urlsafe(30)}"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(file, {"url": base, "token": named, "key": secret}, mode=0o600, sync=True)
    return secret


def _line(name: str, value: str) -> str:
    if "'" in value or "\n" in value:
        raise InputError(f"{name} has a quote or a line break, which worker.env cannot hold.", hint="Change it.")
    return f"{name}='{value}'\n"
