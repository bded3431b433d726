"""Authentication by API key, login code, browser session or attempt token."""

from __future__ import annotations

import hmac
import logging
import secrets
from pathlib import Path
from typing import Final

from tunefleet.artifacts import write_private
from tunefleet.db import DEFAULT_PROJECT, Connection, after_commit, wake
from tunefleet.db.access import keys, project_rows
from tunefleet.db.repositories import attempts, tasks
from tunefleet.db.rows import AttemptRow, KeyRow
from tunefleet.errors import (
    AuthError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    StoreError,
)
from tunefleet.orchestrator.access import projects
from tunefleet.orchestrator.access.login_throttle import LoginThrottle
from tunefleet.orchestrator.access.permissions import KEYS, Actor, AttemptActor, KeyCache, is_operator, may_administer
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.ids import attempt_of, hash_secret, is_secret, new_id, new_secret
from tunefleet.orchestrator.views import key_view
from tunefleet.schemas.api import KeyCreate, KeyCreated, KeyView

log = logging.getLogger(__name__)
LOGIN_CODE_S: Final = 600.0
SESSION_S: Final = 30 * 86_400.0
# The actor for TUNEFLEET_SHARED_TOKEN. It has no row, so that its access ends when the variable is removed.
SHARED_TOKEN: Final = Actor("shared-token", "shared-token", "admin")
_FIRST: Final = (("admin", "admin"), ("worker", "worker"))


async def authenticate(core: ServerContext, secret: str) -> Actor:
    """Authenticate an API key.

    Raises:
        AuthError: If the key is not valid or was revoked.
    """
    digest, known = hash_secret(secret), core.state(KeyCache).actors
    actor = known.get(digest)
    token = core.settings.shared_token
    # Hashes are compared in constant time, so that response times reveal nothing about the token.
    if token is not None and hmac.compare_digest(digest, hash_secret(token.get_secret_value())):
        return SHARED_TOKEN
    if actor is None:
        actor = known[digest] = await core.read(lambda connection: _actor(connection, keys.by_hash(connection, digest)))
    core.state(KeyCache).used_at[actor.key_id] = core.clock.wall()
    return actor


async def authenticate_attempt(core: ServerContext, token: str) -> AttemptActor:
    """Authenticate an attempt token.

    Raises:
        AuthError: If the token is not valid, or the attempt was revoked.
    """
    attempt_id = attempt_of(core.secret, token)
    found = None
    if attempt_id is not None:
        found = await core.read(lambda connection: _attempt(connection, attempt_id))
    if found is None:
        raise AuthError("The attempt token is not valid.")
    row, project = found
    if row.state == "void":
        raise AuthError(
            f"Attempt {row.number} of {row.task_id} was revoked ({row.reason}).",
            hint="Stop its job; its reports are rejected.",
        )
    return AttemptActor(row.id, row.task_id, row.worker_id, project)


async def create(core: ServerContext, actor: Actor, body: KeyCreate) -> KeyCreated:
    """Create an API key; its secret is returned only here.

    Raises:
        ForbiddenError: If the actor is not an admin.
        ConflictError: If the project is archived.
    """
    may_administer(actor)
    secret, now = new_secret(), core.clock.wall()

    def operation(connection: Connection) -> KeyRow:
        project = projects.known(connection, actor, body.project or actor.project).name
        owner = body.owner or body.name
        return insert(
            connection, name=body.name, role=body.role, owner=owner, secret_hash=hash_secret(secret), now=now,
            project=project, endpoint=body.endpoint,
        )  # fmt: skip

    row = await core.write(operation)
    return KeyCreated(**key_view(row).model_dump(), secret=secret)


def insert(
    connection: Connection,
    *,
    name: str,
    role: str,
    owner: str,
    secret_hash: str,
    now: float,
    project: str = DEFAULT_PROJECT,
    endpoint: str | None = None,
) -> KeyRow:
    """Store a new key by the hash of its secret, and return its row."""
    id_ = new_id("key")
    keys.insert_one(
        connection,
        {
            "id": id_, "project": project, "name": name, "role": role, "owner": owner,
            "secret_hash": secret_hash, "created_at": now, "endpoint": endpoint,
        },
    )  # fmt: skip
    row = keys.by_id(connection, id_)
    assert row is not None
    return row


async def list_(core: ServerContext, actor: Actor) -> list[KeyView]:
    """Return the keys of the actor's project without secrets; those of all projects for an operator.

    Raises:
        ForbiddenError: If the actor is not an admin.
    """
    may_administer(actor)
    whose = None if is_operator(actor) else actor.project
    rows = await core.read(lambda connection: keys.all_rows(connection, project=whose))
    return [key_view(row) for row in rows]


async def revoke(core: ServerContext, actor: Actor, key_id: str) -> KeyView:
    """Revoke a key, effective immediately.

    Raises:
        ForbiddenError: If the actor is not an admin.
    """
    may_administer(actor)

    def operation(connection: Connection) -> KeyRow:
        found = keys.by_id(connection, key_id)
        if found is None or not (is_operator(actor) or found.project == actor.project):
            raise NotFoundError(f"Key {key_id} not found.", hint="`tunefleet keys ls` lists them.")
        keys.revoke(connection, key_id, core.clock.wall())
        # After the commit: a request in between would cache the key as valid again.
        after_commit(connection, core.state(KeyCache).forget)
        wake(connection, KEYS)
        row = keys.by_id(connection, key_id)
        assert row is not None
        return row

    return key_view(await core.write(operation))


async def ensure_first(core: ServerContext) -> None:
    """At the first start, create an admin and a worker key, each in a file that only this user can read."""
    if await core.read(lambda connection: keys.all_rows(connection, project=DEFAULT_PROJECT)):
        return
    folder = core.settings.data_dir / "keys"
    # Files are written before rows, and existing files are reused: one may be the only copy of a key of a lost
    # database.
    existing = {name: _secret_in(folder / f"{name}.key") for name, _ in _FIRST}
    wanted = {name: (role, existing[name] or new_secret()) for name, role in _FIRST}
    for name, (_, secret) in wanted.items():
        if existing[name] is None:
            write_private(folder / f"{name}.key", secret + "\n")

    def operation(connection: Connection) -> bool:
        if keys.all_rows(connection, project=DEFAULT_PROJECT):
            return False
        for name, (role, secret) in wanted.items():
            insert(connection, name=name, role=role, owner=name, secret_hash=hash_secret(secret), now=core.clock.wall())
        return True

    if not await core.write(operation):
        # Another server on the database was faster: the keys are in its data folder.
        for name in wanted:
            if existing[name] is None:
                (folder / f"{name}.key").unlink()
        return
    log.info("Created the first keys in %s.", folder)


async def create_login_code(core: ServerContext, actor: Actor) -> str:
    """Create a single-use login code for a browser session, valid for ten minutes.

    Raises:
        AuthError: If the actor uses TUNEFLEET_SHARED_TOKEN: a session would outlive the variable.
        ForbiddenError: If the actor has no key of its own, such as a campaign.
    """
    if actor is SHARED_TOKEN:
        raise AuthError(
            "TUNEFLEET_SHARED_TOKEN cannot open a browser session.",
            hint="Log in with a key from `tunefleet keys create`.",
        )
    if await core.read(lambda connection: keys.by_id(connection, actor.key_id)) is None:
        raise ForbiddenError(
            "A browser session requires an API key.", hint="Log in with a key from `tunefleet keys create`."
        )
    return await _open(core, "login", actor.key_id, LOGIN_CODE_S)


async def redeem_login_code(core: ServerContext, code: str) -> str:
    """Redeem a login code, and return the token of a browser session."""
    token, digest = secrets.token_urlsafe(30), hash_secret(code)

    def operation(connection: Connection) -> None:
        now = core.clock.wall()
        row = keys.session_key(connection, token_hash=digest, kind="login", now=now)
        if row is None:
            raise AuthError(
                "The login code is not valid, was used or has expired.", hint="Get a new one with `tunefleet login`."
            )
        keys.drop_session(connection, digest)
        keys.drop_expired_sessions(connection, now)
        keys.add_session(
            connection, token_hash=hash_secret(token), kind="browser", key_id=row.id, expires_at=now + SESSION_S
        )

    await core.write(operation)
    return token


async def open_session(
    core: ServerContext, address: str, *, key: str | None = None, code: str | None = None
) -> tuple[str, Actor]:
    """Open a browser session with a key or a login code.

    Raises:
        AuthError: If key or code is not valid, used, revoked or expired.
        TooManyError: If the address has had too many failed logins.
    """
    core.state(LoginThrottle).begin(address, core.clock.monotonic())
    if key is not None:
        code = await create_login_code(core, await authenticate(core, key))
    token = await redeem_login_code(core, code or "")
    core.state(LoginThrottle).succeeded(address, core.clock.monotonic())
    return token, await authenticate_session(core, token)


async def close_session(core: ServerContext, token: str) -> None:
    """End a browser session; does nothing if it has ended."""
    digest = hash_secret(token)
    await core.write(lambda connection: keys.drop_session(connection, digest))


async def authenticate_session(core: ServerContext, token: str) -> Actor:
    """Authenticate a browser session.

    Raises:
        AuthError: If the session has ended.
    """
    digest, now = hash_secret(token), core.clock.wall()

    def operation(connection: Connection) -> Actor:
        row = keys.session_key(connection, token_hash=digest, kind="browser", now=now)
        if row is None:
            raise AuthError("The session has ended.", hint="Open a new login link with `tunefleet login`.")
        return _actor(connection, row)

    return await core.read(operation)


async def _open(core: ServerContext, kind: str, key_id: str, lasts_s: float) -> str:
    token = secrets.token_urlsafe(30)
    expires_at = core.clock.wall() + lasts_s
    await core.write(
        lambda connection: keys.add_session(
            connection, token_hash=hash_secret(token), kind=kind, key_id=key_id, expires_at=expires_at
        )
    )
    return token


def _attempt(connection: Connection, attempt_id: str) -> tuple[AttemptRow, str] | None:
    """Return an attempt and the project of its task; None if there is none."""
    row = attempts.by_ids(connection, [attempt_id]).get(attempt_id)
    if row is None:
        return None
    task = tasks.by_ids(connection, [row.task_id]).get(row.task_id)
    return row, DEFAULT_PROJECT if task is None else task.project


def refuse_archived(connection: Connection, project: str) -> None:
    """Raise if a project is archived."""
    found = project_rows.get(connection, project)
    if found is not None and found.archived_at is not None:
        raise AuthError(
            f"Project {project} is archived.",
            hint=f"Ask an admin to restore it: tunefleet projects restore {project}.",
        )


def _actor(connection: Connection, row: KeyRow | None) -> Actor:
    if row is None:
        raise AuthError("The key is not valid.", hint="Check TUNEFLEET_KEY, or run `tunefleet keys create`.")
    if row.revoked_at is not None:
        raise AuthError(f"Key {row.name} was revoked.", hint="Ask an admin for another one.")
    if row.role != "worker":  # running tasks of an archived project are finished
        refuse_archived(connection, row.project)
    return Actor(row.id, row.owner, row.role, row.project, row.endpoint)


def _secret_in(path: Path) -> str | None:
    """Return the key in a file; None if there is no file."""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    if not is_secret(secret):
        raise StoreError(f"{path} contains no valid key.", hint="Move it away; a new one is then created.")
    return secret


def refuse_ended(connection: Connection, attempt: AttemptActor) -> None:
    """Raise ConflictError if an attempt has ended."""
    row = attempts.by_ids(connection, [attempt.attempt_id]).get(attempt.attempt_id)
    if row is None or not row.open:
        state = "unknown" if row is None else row.state
        raise ConflictError(f"Attempt {attempt.attempt_id} is {state}; it accepts no more data.")
