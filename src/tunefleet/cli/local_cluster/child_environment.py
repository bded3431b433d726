"""What the children of a local fleet find in their environment: each as many secrets as it needs, and no more.

server   the addresses of database, mail server and Redis, the shared token, Amazon's variables for its bucket
worker   the address of the Redis, its key, the secrets that tasks may name; its jobs get the last alone

What is no secret all of them inherit from this process.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import SecretStr

from tunefleet.runtime.environment import core_count
from tunefleet.settings import (
    SECRET_PREFIX,
    ServerSettings,
    WorkerSettings,
    cloud_variables,
    inherited_environment,
    load,
    secret_variables,
)


def to_server(settings: ServerSettings, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the server's environment."""
    own = _values(
        REDIS_URL=settings.redis_url,
        ORCHESTRATOR_TOKEN=settings.shared_token,
        TUNEFLEET_DATABASE_URL=settings.database_url,
        TUNEFLEET_SMTP_URL=settings.smtp_url,
    )
    return {**own, **inherited_environment(), **extra}


def to_worker(
    settings: ServerSettings, extra: Mapping[str, str], *, key: str, number: int = 1, of: int = 1
) -> dict[str, str]:
    """Return the environment of a worker."""
    # Amazon's variables open the server's bucket, and every job inherits what its worker has.
    plain = {**_values(REDIS_URL=settings.redis_url), **inherited_environment(*cloud_variables()), **extra}
    # What tasks may name is for workers alone; the server needs no value.
    secret = {f"{SECRET_PREFIX}{name}": value for name, value in secret_variables().items()}
    own = {"LOG_FILE": ""}  # the server's; two processes cannot put one file aside
    return {**plain, **(_apart(number, of) if of > 1 else {}), **own, **secret, "TUNEFLEET_WORKER_KEY": key}


def _apart(number: int, of: int) -> dict[str, str]:
    """Return what keeps workers on one machine out of each other's way: a name and a part of the cores for each."""
    settings = load(WorkerSettings)
    found = {}
    if settings.worker_id and number > 1:
        found["WORKER_ID"] = f"{settings.worker_id}-{number}"
    if settings.torch_threads is None:
        found["TUNEFLEET_TORCH_THREADS"] = str(max(1, core_count() // (of * max(1, settings.job_slots))))
    return found


def _values(**variables: SecretStr | None) -> dict[str, str]:
    """Return the variables that have a value, as an environment takes them."""
    return {name: value.get_secret_value() for name, value in variables.items() if value is not None}
