"""Limits of a machine's secrets: a file with the allowed projects and hosts of each.

    WANDB: {projects: [vision], hosts: [api.wandb.ai, "*.example.org"]}

Only the machine reads it, so that a server cannot lift a limit. The use of a secret is derived from its position in a
task. Hosts can be enforced only where Tunefleet itself sends the request; a secret that is passed to code, a model or a
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
# Keys of a request block: its URL, and the data sent with it.
_REQUEST: Final = frozenset(
    {"api_key", "base_url", "download_headers", "download_url", "headers", "path", "place", "url"}
)
# Keys of a data block with nested request blocks.
_WITHIN: Final = frozenset({"eval", "jsonl"})
# (task kind or None for all, block): blocks from which Tunefleet itself sends requests.
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
    """Limits of one secret; an omitted field is not limited."""

    projects: tuple[Text, ...] | None = None
    """Projects whose tasks may use it."""
    hosts: tuple[Text, ...] | None = None
    """Hosts that it may be sent to: `host`, `host:port`, or `*.domain` for all subdomains."""

    @field_validator("hosts")
    @classmethod
    def _plain_hosts(cls, hosts: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for host in hosts or ():
            name = host.removeprefix("*.")
            if not name or any(character in name for character in "*/@?# "):
                raise wrong(f"{host!r} is not a host", "use api.example.org, api.example.org:8443 or *.example.org")
        return None if hosts is None else tuple(host.lower() for host in hosts)

    def takes(self, url: str) -> bool:
        """Return whether the secret may be sent to a URL."""
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
        file: YAML file: name of a secret → `projects`, `hosts`; None for no limits.

    Raises:
        InputError: If the file cannot be read.
        SpecError: If the file is invalid.
    """
    if file is None:
        return {}
    try:
        with file.expanduser().open(encoding="utf-8") as opened:
            text = opened.read(_MAX_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"Cannot read the limits of secrets from {file}: {error}.",
            hint="Fix TUNEFLEET_SECRETS_LIMITS, or unset it if no secret is limited.",
        ) from error
    if len(text) > _MAX_CHARACTERS:
        raise InputError(f"The limits of secrets in {file} have more than {_MAX_CHARACTERS} characters.")
    source = read_text(text, filename=str(file))
    if not isinstance(source.data, dict):
        hint = "use one line per secret, such as WANDB: {projects: [vision], hosts: [api.wandb.ai]}"
        raise SpecError([Fault("", "the file is not a mapping of secrets", 1, 1, hint)], filename=str(file))
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
    """Reject a task that would use a secret against its limits, before anything is sent.

    Args:
        project: Project of the task; None if unknown, or without projects.

    Raises:
        InputError: With the field, the secret and how to fix it.
    """
    for each in find(spec) if limits else ():
        limit = limits.get(each.piece.name) if isinstance(each.piece, Secret) else None
        if limit is None or not isinstance(each.piece, Secret):
            continue
        name, field = each.piece.name, dotted(("spec", *each.where))
        if limit.projects is not None and project not in limit.projects:
            owner = f"of project {project}" if project is not None else "without a project"
            raise InputError(
                f"{field}: this machine's secret {name} is not allowed in tasks {owner}.", hint=_hint(name, "projects")
            )
        if limit.hosts is not None:
            _check_hosts(spec, kind, each.where, name, limit, secrets)


def check_sent(values: Any, url: str, limits: Limits) -> None:
    """Reject sending secrets to a host that is not allowed.

    Raises:
        InputError: With the secret, the host and how to fix it.
    """
    for each in find({"sent": values}) if limits else ():
        limit = limits.get(each.piece.name) if isinstance(each.piece, Secret) else None
        if limit is not None and limit.hosts is not None and isinstance(each.piece, Secret) and not limit.takes(url):
            name, host = each.piece.name, _host_of(url)
            raise InputError(f"This machine's secret {name} may not be sent to {host}.", hint=_hint(name, "hosts"))


def _check_hosts(
    spec: Mapping[str, Any], kind: str, where: Where, name: str, limit: Limit, secrets: Callable[[str], str | None]
) -> None:
    block = _request_around(kind, where)
    urls = [] if block is None else list(_urls(_at(spec, block), secrets, deep=block[-1] != "api"))
    field = dotted(("spec", *where))
    if not urls:
        raise InputError(
            f"{field}: this machine's secret {name} is limited to certain hosts, which cannot be enforced here.",
            hint=_hint(name, "hosts"),
        )
    for url in urls:
        if not limit.takes(url):
            raise InputError(
                f"{field}: this machine's secret {name} may not be sent to {_host_of(url)}.",
                hint=_hint(name, "hosts"),
            )


def _host_of(url: str) -> str:
    return urlsplit(url).hostname or "no host"


def _hint(name: str, key: str) -> str:
    return f"The operator of the machine can allow it in {name}.{key} of TUNEFLEET_SECRETS_LIMITS."


def _request_around(kind: str, where: Where) -> Where | None:
    """Return the request block that contains a secret; None if the secret is not part of a request."""
    for of, pattern in _REQUESTS:
        block = where[: len(pattern)]
        if of in (None, kind) and len(block) == len(pattern) < len(where) and all(map(_alike, pattern, block)):
            below = [key for key in where[len(pattern) :] if key not in _WITHIN]
            return block if of is not None or (below and below[0] in _REQUEST) else None
    return None


def _alike(pattern: str | int, key: str | int) -> bool:
    return pattern == key or (pattern == "*" and isinstance(key, int))


def _at(spec: Any, where: Where) -> Any:
    for key in where:
        spec = spec[key]
    return spec


def _urls(block: Any, secrets: Callable[[str], str | None], *, deep: bool) -> Iterator[str]:
    """Yield the URLs of a block: only its `url`, or with `deep` every URL in it, since any of them may be requested."""
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
