"""Finds the executors that are installed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points

from tunefleet.executors.base import Executor, missing
from tunefleet.schemas.worker_link import ExecutorOffer
from tunefleet.settings import inherited_environment
from tunefleet.spec.options.output import S3

logger = logging.getLogger(__name__)

GROUP = "tunefleet.executors"
_OURS = "tunefleet."
_NO_CODE = "Tasks bring code, which a worker runs with --allow-code (TUNEFLEET_ALLOW_CODE=true) only."


class Registry:
    """The kinds that a worker knows.

    Args:
        broken: Kind → why its executor could not be loaded.
    """

    def __init__(self, executors: Iterable[Executor], *, broken: dict[str, str] | None = None) -> None:
        self._executors = {executor.kind: executor for executor in executors}
        self._broken = dict(broken or {})

    def find(self, kind: str) -> Executor | None:
        """Return the executor of a kind, or `None`."""
        return self._executors.get(kind)

    def offers(
        self, *, allow_code: bool = True, environment: Mapping[str, str] | None = None
    ) -> tuple[ExecutorOffer, ...]:
        """Return what the server is to know: each kind, and why it cannot run here if it cannot."""
        variables = inherited_environment() if environment is None else environment
        no_s3 = missing("boto3", extra="s3", what="The packages that write to a bucket")
        known = [
            ExecutorOffer(
                kind=kind,
                slot_class=executor.slot_class,
                available=reason is None,
                reason=reason,
                merges=executor.merges,
                heeds=tuple(sorted(executor.heeds)),
                features={S3: no_s3} | executor.features(variables) if reason is None else {},
            )
            for kind, executor in sorted(self._executors.items())
            for reason in (_NO_CODE if executor.brings_code and not allow_code else executor.unavailable_reason(),)
        ]
        lost = [
            ExecutorOffer(kind=kind, available=False, reason=reason) for kind, reason in sorted(self._broken.items())
        ]
        return tuple(known + lost)


def installed(points: Iterable[EntryPoint] | None = None) -> Registry:
    """Load the executors of the entry point group; one that cannot be loaded is named, the others still work.

    Another package's executor takes the place of ours of the same kind: somebody has installed it for that. Of two
    others none is taken.
    """
    executors: dict[str, Executor] = {}
    origins: dict[str, str] = {}
    broken: dict[str, str] = {}
    found = entry_points(group=GROUP) if points is None else points
    for point in sorted(found, key=lambda point: (not point.value.startswith(_OURS), point.value)):
        try:
            executor: Executor = point.load()()
        except Exception as error:
            logger.warning("The executor %s cannot be loaded.", point.name, exc_info=True)
            broken[point.name] = f"Its executor ({point.value}) cannot be loaded: {error}"
            continue
        kind, other = executor.kind, origins.get(executor.kind, _OURS)
        broken.pop(kind, None)
        if not other.startswith(_OURS):
            broken[kind] = f"Two packages have an executor for it, {other} and {point.value}: uninstall one of them."
        executors[kind], origins[kind] = executor, point.value
    return Registry((each for kind, each in executors.items() if kind not in broken), broken=broken)
