"""Where a machine's secrets may go: the file that limits each of them to projects and to hosts.

    WANDB: {projects: [vision], hosts: [api.wandb.ai, "*.example.org"]}

Only the machine reads it: a limit that a server could lift would be none. What a secret is for is told by where it
stands in a task. A host counts where Tunefleet itself sends the request; whatever is handed to code, a model or a
result could go anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import ValidationError, field_validator

from tunefleet.errors import Fault, InputError, SpecError
from tunefleet.spec.base import Block, Text, is_url, wrong
from tunefleet.spec.documents.fault_messages import explain
from tunefleet.spec.expressions.placeholders import Secret
from tunefleet.spec.expressions.references import fill_secrets, find
from tunefleet.spec.text import Path as Where
from tunefleet.spec.text import dotted, read_text

_MAX_CHARACTERS: Final = 256 << 10
_REQUEST: Final = frozenset(
    {"api_key", "base_url", "download_headers", "download_url", "headers", "path", "place", "url"}
)
"""Keys of a block that is a request: its address, and what is sent with it."""
# Keys of a block of data below which the same stands.
_WITHIN: Final = frozenset({"eval", "jsonl"})
# Kind of task, or None for all → blocks out of which Tunefleet sends requests itself.
_REQUESTS: Final[tuple[tuple[str | None, Where], ...]] = (
    ("api", ("api",)),
    (None, ("output", "destination")),
    (None, ("checkpoint", "load")),
    (None, ("model", "adapters", "*")),
    (None, ("data",)),
    (None, ("sources", "*")),
    (None, ("evaluations", "*", "data")),
    (None, ("qdrant",)),
)


class Limit(Block):
    """Where one secret may go; what is left out is not limited."""

    projects: tuple[Text, ...] | None = None
    """Projects whose tasks may name it."""
    hosts: tuple[Text, ...] | None = None
    """Hosts that it may be sent to: `host`, `host:port`, or `*.domain` for all below a domain."""

    @field_validator("hosts")
    @classmethod
    def _plain_hosts(cls, hosts: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for host in hosts or ():
            name = host.removeprefix("*.")
            if not name or any(character in name for character in "*/@?# "):
                raise wrong(f"{host!r} is no host", "write api.example.org, api.example.org:8443 or *.example.org")
        return None if hosts is None else tuple(host.lower() for host in hosts)

    def takes(self, url: str) -> bool:
        """Return whether the secret may be sent to an address."""
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        try:
            port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        except ValueError:
            return False
        return bool(host) and any(_matches(pattern, host, port) for pattern in self.hosts or ())


Limits = Mapping[str, Limit]


def read_limits(file: Path | None) -> dict[str, Limit]:
    """Read the limits of a machine's secrets.

    Args:
        file: Name of a secret → `projects`, `hosts`; None for no limits.
    """
    if file is None:
        return {}
    try:
        with file.expanduser().open(encoding="utf-8") as opened:
            text = opened.read(_MAX_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"The limits of secrets, {file}, cannot be read: {error}.",
            hint="Mend TUNEFLEET_SECRETS_LIMITS, or unset it if no secret is limited.",
        ) from error
    if len(text) > _MAX_CHARACTERS:
        raise InputError(f"The limits of secrets, {file}, have more than {_MAX_CHARACTERS} characters.")
    source = read_text(text, filename=str(file))
    if not isinstance(source.data, dict):
        hint = "write one line for each secret, such as WANDB: {projects: [vision], hosts: [api.wandb.ai]}"
        raise SpecError([Fault("", "the file limits no secret", 1, 1, hint)], filename=str(file))
    found: dict[str, Limit] = {}
    faults: list[Fault] = []
    for name, block in source.data.items():
        try:
            found[str(name)] = Limit.model_validate(block)
        except ValidationError as error:
            faults += explain(error, Limit, source, prefix=(name,))
    if faults:
        raise SpecError(faults, filename=str(file))
    return found


def check(
    spec: Mapping[str, Any], kind: str, project: str | None, limits: Limits, secrets: Callable[[str], str | None]
) -> None:
    """Refuse a task that would bring a secret where it may not go; nothing has been sent then.

    Args:
        project: Whose task it is; None where there are no projects, or a server does not say.

    Raises:
        InputError: Names the field, the secret and the way out.
    """
    for each in find(spec) if limits else ():
        limit = limits.get(each.piece.name) if isinstance(each.piece, Secret) else None
        if limit is None or not isinstance(each.piece, Secret):
            continue
        name, field = each.piece.name, dotted(("spec", *each.where))
        if limit.projects is not None and project not in limit.projects:
            whose = f"of the project {project}" if project is not None else "of no project"
            raise InputError(
                f"{field}: this machine's secret {name} is not for tasks {whose}.", hint=_way_out(name, "projects")
            )
        if limit.hosts is not None:
            _check_hosts(spec, kind, each.where, name, limit, secrets)


def check_sent(values: Any, url: str, limits: Limits) -> None:
    """Refuse to send secrets to an address that they may not go to.

    Raises:
        InputError: Names the secret, the host and the way out.
    """
    for each in find({"sent": values}) if limits else ():
        limit = limits.get(each.piece.name) if isinstance(each.piece, Secret) else None
        if limit is not None and limit.hosts is not None and isinstance(each.piece, Secret) and not limit.takes(url):
            name, host = each.piece.name, _host_of(url)
            raise InputError(f"This machine's secret {name} may not be sent to {host}.", hint=_way_out(name, "hosts"))


def _check_hosts(
    spec: Mapping[str, Any], kind: str, where: Where, name: str, limit: Limit, secrets: Callable[[str], str | None]
) -> None:
    block = _request_around(kind, where)
    urls = [] if block is None else list(_urls(_at(spec, block), secrets, deep=block[-1] != "api"))
    field = dotted(("spec", *where))
    if not urls:
        raise InputError(
            f"{field}: this machine's secret {name} goes to certain hosts only, and here it would be handed to what "
            "could send it anywhere.",
            hint=_way_out(name, "hosts"),
        )
    for url in urls:
        if not limit.takes(url):
            raise InputError(
                f"{field}: this machine's secret {name} may not be sent to {_host_of(url)}.",
                hint=_way_out(name, "hosts"),
            )


def _host_of(url: str) -> str:
    return urlsplit(url).hostname or "no host"


def _way_out(name: str, key: str) -> str:
    return f"Whoever runs the machine names what it is for in {name}.{key} of its TUNEFLEET_SECRETS_LIMITS."


def _request_around(kind: str, where: Where) -> Where | None:
    """Return the block that a secret is sent by, if it stands in a request; None if it is for something else."""
    for of, pattern in _REQUESTS:
        here = where[: len(pattern)]
        if of in (None, kind) and len(here) == len(pattern) < len(where) and all(map(_alike, pattern, here)):
            below = [key for key in where[len(pattern) :] if key not in _WITHIN]
            return here if of is not None or (below and below[0] in _REQUEST) else None
    return None


def _alike(pattern: str | int, key: str | int) -> bool:
    return pattern == key or (pattern == "*" and isinstance(key, int))


def _at(spec: Any, where: Where) -> Any:
    for key in where:
        spec = spec[key]
    return spec


def _urls(block: Any, secrets: Callable[[str], str | None], *, deep: bool) -> Iterator[str]:
    """Yield the addresses of a block: its `url` alone, or every one in it, since one of them may be the one."""
    if not deep:
        found = block.get("url")
        if isinstance(found, str):
            yield str(fill_secrets(found, secrets))
        return
    inner = block.values() if isinstance(block, Mapping) else block if isinstance(block, list | tuple) else ()
    for each in inner:
        if isinstance(each, str):
            text = str(fill_secrets(each, secrets))
            if is_url(text):
                yield text
        else:
            yield from _urls(each, secrets, deep=True)


def _matches(pattern: str, host: str, port: int | None) -> bool:
    name, _, wanted = pattern.rpartition(":") if _has_port(pattern) else (pattern, "", "")
    name = name.strip("[]")
    if wanted and wanted != str(port):
        return False
    return host.endswith(name[1:]) if name.startswith("*.") else host == name


def _has_port(pattern: str) -> bool:
    return pattern.rpartition(":")[2].isdigit() and (pattern.count(":") == 1 or "]:" in pattern)
