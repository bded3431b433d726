"""Detection of dependency cycles between tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def cycles(waits: Mapping[str, Collection[str]], most: int | None = None) -> list[list[str]]:
    """Find dependency cycles.

    Args:
        waits: Task → the tasks that it waits for. Names without an entry wait for nothing.
        most: Maximum number of cycles; each search covers all remaining tasks.

    Returns:
        Disjoint cycles, each in the order of waiting: the first task waits for the second, the last for the
        first. A task that waits for itself is a cycle of one. Empty if and only if the graph is acyclic.
    """
    left = {name: [each for each in found if each in waits] for name, found in waits.items()}
    found: list[list[str]] = []
    while (most is None or len(found) < most) and (left := _without_ends(left)):
        found.append(_cycle(left))
        left = {name: above for name, above in left.items() if name not in found[-1]}
    return found


def layers(waits: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Sort tasks into layers: each is in the layer after its last dependency.

    Args:
        waits: Task → the tasks that it waits for, without cycles.
    """
    depth: dict[str, int] = {}
    rest = {name: [each for each in above if each in waits] for name, above in waits.items()}
    while rest:
        ready = [name for name, above in rest.items() if all(each in depth for each in above)]
        if not ready:
            raise ValueError("tasks that wait for each other have no layers")
        for name in ready:
            depth[name] = max((depth[each] + 1 for each in rest.pop(name)), default=0)
    return [[name for name in waits if depth[name] == at] for at in range(max(depth.values(), default=-1) + 1)]


def _without_ends(waits: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Repeatedly remove tasks without remaining dependencies (Kahn's algorithm)."""
    count = {name: sum(each in waits for each in set(above)) for name, above in waits.items()}
    below: dict[str, list[str]] = {name: [] for name in waits}
    for name, above in waits.items():
        for each in set(above) & waits.keys():
            below[each].append(name)
    free = [name for name, number in count.items() if number == 0]
    while free:
        for each in below[free.pop()]:
            count[each] -= 1
            if count[each] == 0:
                free.append(each)
    return {name: above for name, above in waits.items() if count[name] > 0}


def _cycle(waits: Mapping[str, list[str]]) -> list[str]:
    """Follow dependencies until a task repeats."""
    # Terminates: every remaining task waits for another remaining one.
    name = next(iter(waits))
    walked: dict[str, None] = {}
    while name not in walked:
        walked[name] = None
        name = next(each for each in waits[name] if each in waits)
    names = list(walked)
    return names[names.index(name) :]
