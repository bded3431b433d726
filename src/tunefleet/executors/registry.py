"""Finds the installed executors."""

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
_NO_CODE = "Tasks of this kind run custom code, which requires --allow-code (TUNEFLEET_ALLOW_CODE=true)."


class Registry:
    """The task types of a worker.

    Args:
        broken: Kind → why its executor could not be loaded.
    """

    def __init__(self, executors: Iterable[Executor], *, broken: dict[str, str] | None = None) -> None:
        self._executors = {executor.kind: executor for executor in executors}
        self._broken = dict(broken or {})

    def find(self, kind: str) -> Executor | None:
        """Return the executor of a kind, or None."""
        return self._executors.get(kind)

    def offers(
        self, *, allow_code: bool = True, environment: Mapping[str, str] | None = None
    ) -> tuple[ExecutorOffer, ...]:
        """Return all kinds for the server, with the reason if a kind cannot run on this machine."""
        variables = inherited_environment() if environment is None else environment
        no_s3 = missing("boto3", extra="s3", what="The packages that write to a bucket")
        known = [
            ExecutorOffer(
                kind=kind,
                slot_class=executor.slot_class,
                available=reason is None,
                reason=reason,
                merges=executor.merges,
                heeds=tuple(sorted(executor.supported_commands)),
                features={S3: no_s3} | executor.features(variables) if reason is None else {},
            )
            for kind, executor in sorted(self._executors.items())
            for reason in (_NO_CODE if executor.brings_code and not allow_code else executor.unavailable_reason(),)
        ]
        unavailable = [
            ExecutorOffer(kind=kind, available=False, reason=reason) for kind, reason in sorted(self._broken.items())
        ]
        return tuple(known + unavailable)


def installed(points: Iterable[EntryPoint] | None = None) -> Registry:
    """Load the executors of the entry point group; one that cannot be loaded is reported as unavailable."""
    executors: dict[str, Executor] = {}
    origins: dict[str, str] = {}
    broken: dict[str, str] = {}
    found = entry_points(group=GROUP) if points is None else points
    # Built-in executors first, so that another package's executor of the same kind replaces them: it was installed for
    # that purpose. Two other packages with the same kind are a conflict, and neither is used.
    for point in sorted(found, key=lambda point: (not point.value.startswith(_OURS), point.value)):
        try:
            executor: Executor = point.load()()
        except Exception as error:
            logger.warning("Could not load the executor %s.", point.name, exc_info=True)
            broken[point.name] = f"Could not load its executor ({point.value}): {error}"
            continue
        kind, other = executor.kind, origins.get(executor.kind, _OURS)
        broken.pop(kind, None)
        if not other.startswith(_OURS):
            broken[kind] = f"Two packages provide its executor, {other} and {point.value}: uninstall one of them."
        executors[kind], origins[kind] = executor, point.value
    return Registry((each for kind, each in executors.items() if kind not in broken), broken=broken)
