"""Federations, their rounds and versions as tables and field lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit, urlunsplit

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tunefleet.cli import formatting
from tunefleet.cli.console import cut, facts, status_text, table
from tunefleet.schemas.federated import (
    FederationDetail,
    FederationView,
    Losses,
    MemberView,
    RoundView,
    VersionDetail,
    VersionView,
)

_ROUND_STYLES = {"published": "good", "failed": "bad", "abandoned": "warn"}


def url_with_token(url: str, token: str) -> str:
    """Return a server's URL with a token as the password."""
    parts = urlsplit(url)
    # A password without a user name: clients send it as the token.
    return urlunsplit(parts._replace(netloc=f":{token}@{parts.netloc}"))


def federation_table(found: Sequence[FederationView]) -> Table:
    """Build the table of federations."""
    made = table(
        "federation", "#", "name", "status", "strategy", "workers", "version", "task", "created",
        right=("#", "workers", "version"), wide="name",
    )  # fmt: skip
    for each in found:
        made.add_row(
            Text(each.id, style="id"),
            str(each.number),
            cut(each.name),
            status_text(each.status),
            each.strategy,
            str(each.members),
            str(each.version),
            cut(each.task_id or "–", "id"),
            f"{formatting.age(each.created_at)} ago",
        )
    return made


def detail(found: FederationDetail) -> Iterator[RenderableType]:
    """Yield the parts of a federation's screen."""
    yield Text.assemble((found.name, "head"), "  ", (found.id, "id"), "  ", status_text(found.status))
    spec = found.spec
    quorum = f"{spec.get('min_workers')} workers"
    if spec.get("participants"):
        quorum = f"all of {', '.join(spec['participants'])}; {quorum} at the deadline"
    yield facts(
        [
            ("number", str(found.number)),
            ("task", found.task_id),
            ("reason", found.why),
            ("base model", found.base_model),
            ("strategy", found.strategy),
            ("quorum", quorum),
            ("deadline", formatting.duration(spec.get("deadline_s"))),
            ("newest version", str(found.version) if found.version else "none yet"),
            ("round", f"{found.round} of {spec['rounds']}" if spec.get("rounds") else str(found.round or "–")),
            ("owner", found.owner),
            ("created", f"{formatting.age(found.created_at)} ago"),
        ]
    )
    if found.member_list:
        yield ""
        yield _members(found.member_list)
        for each in found.member_list:
            if each.refused is not None:
                yield Text(f"{each.worker}: the newest update was rejected. {each.refused}", style="bad")
    if found.rounds:
        yield ""
        yield _rounds(found.rounds)


def _members(found: Sequence[MemberView]) -> Table:
    made = table(
        "worker", "updates", "examples", "step", "round", "loss", "seen",
        right=("updates", "examples", "step", "round", "loss"), wide="worker",
    )  # fmt: skip
    for each in found:
        made.add_row(
            cut(each.worker, "id"),
            str(each.updates),
            formatting.number(each.num_examples),
            formatting.number(each.step),
            formatting.number(each.round),
            formatting.number(each.loss),
            f"{formatting.age(each.seen_at)} ago",
        )
    return made


def _rounds(found: Sequence[RoundView]) -> Table:
    made = table(
        "round", "status", "uploaded", "version", "opened", "reason", right=("round", "version"), wide="reason"
    )
    for each in found:
        expected = f" of {len(each.participants)}" if each.participants is not None else ""
        made.add_row(
            str(each.number),
            Text(each.status, style=_ROUND_STYLES.get(each.status, "busy")),
            f"{len(each.uploaded)}{expected}",
            formatting.number(each.version),
            f"{formatting.age(each.opened_at)} ago",
            cut(each.why or ""),
        )
    return made


def version_table(found: Sequence[VersionView]) -> Table:
    """Build the table of versions."""
    made = table(
        "version", "round", "by", "examples", "loss", "size", "created", "artifact",
        right=("version", "round", "examples", "loss", "size"), wide="by",
    )  # fmt: skip
    for each in found:
        made.add_row(
            str(each.version),
            formatting.number(each.round),
            cut(", ".join(each.contributors) if each.equals is None else f"version {each.equals} again"),
            formatting.number(each.num_examples),
            formatting.number(each.loss),
            formatting.size(each.size_bytes),
            f"{formatting.age(each.created_at)} ago",
            Text(each.artifact_id, style="id"),
        )
    return made


def _size(found: VersionDetail) -> str:
    packed = found.archive_size_bytes
    return formatting.size(found.size_bytes) + ("" if packed is None else f", as archive {formatting.size(packed)}")


def version_detail(found: VersionDetail) -> Iterator[RenderableType]:
    """Yield the parts of a version's screen."""
    yield facts(
        [
            ("version", str(found.version)),
            ("round", None if found.round is None else str(found.round)),
            ("same as", None if found.equals is None else f"version {found.equals}"),
            ("strategy", found.strategy),
            ("step", formatting.number(found.step)),
            ("examples", formatting.number(found.num_examples)),
            ("loss", losses(found.losses)),
            ("size", _size(found)),
            ("sha256", found.sha256),
            ("created", f"{formatting.age(found.created_at)} ago"),
            *((name.replace("_", " "), formatting.number(value)) for name, value in _figures(found)),
        ]
    )
    if found.contributions:
        yield ""
        yield _contributions(found)
    if found.refused:
        yield ""
        made = table("rejected", "update", "reason", right=("update",), wide="reason")
        for each in found.refused:
            made.add_row(each.worker, formatting.number(each.update), cut(each.reason))
        yield made
    yield Text(f"Download: tunefleet artifacts get {found.artifact_id}", style="dim")


def _figures(found: VersionDetail) -> Iterator[tuple[str, float]]:
    """Yield the numeric fields of the strategy's report."""
    for name, value in found.report.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield name, value


def _contributions(found: VersionDetail) -> Table:
    made = table(
        "worker", "weight", "examples", "step", "base", "norm", "loss",
        right=("weight", "examples", "step", "base", "norm"), wide="worker",
    )  # fmt: skip
    for each in found.contributions:
        made.add_row(
            cut(each.worker, "id"),
            f"{each.weight:.3f}",
            formatting.number(each.num_examples),
            formatting.number(each.step),
            "–" if each.base_version is None else f"v{each.base_version}",
            formatting.number(each.norm),
            losses(each.losses) or "–",
        )
    return made


def losses(found: Losses) -> str | None:
    """Return losses before and after, such as `2.31 → 1.98`."""
    if found.before is None and found.after is None:
        return None
    if found.before is None:
        return formatting.number(found.after)
    return f"{formatting.number(found.before)} → {formatting.number(found.after)}"
