"""Federations count each update once, and campaigns train on each chunk once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.chaos.history import Row, told
from tests.chaos.index import Index


def federations(index: Index) -> Iterator[str]:
    """Yield whatever a federation has lost or counted twice."""
    for federation in index.rows.federations:
        seq, name = federation["seq"], federation["id"]
        if federation["status"] not in {"completed", "cancelled", "failed"}:
            yield f"federation {name} is {federation['status']}"
        mine = [row for row in index.rows.federation_updates if row["federation_seq"] == seq]
        counted = Counter((row["worker"], row["step"]) for row in mine if row["state"] == "aggregated")
        for (worker, step), count in sorted(counted.items()):
            if count > 1:
                yield f"federation {name} has counted {worker}'s update of step {step} {count} times"
        yield from _rows(name, mine)
        versions = [row for row in index.rows.federation_versions if row["federation_seq"] == seq]
        if federation["version"] != max((row["version"] for row in versions), default=0):
            yield f"federation {name} is at version {federation['version']}, and that is not its newest"
        numbers = sorted(row["version"] for row in versions)
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"the versions of federation {name} are {numbers}"
        for row in mine:
            if row["state"] in {"waiting", "counted"}:
                yield f"an update of {row['worker']} at step {row['step']} of federation {name} is {row['state']}"


def _rows(federation: str, updates: list[Row]) -> Iterator[str]:
    """See that no row of a worker's training weighs in two versions."""
    counted = [row for row in updates if row["state"] == "aggregated" and row["rows_after"] is not None]
    reached: dict[str, int] = {}
    for row in sorted(counted, key=lambda row: row["rows_after"]):
        begins = row["rows_after"] - row["num_examples"]
        if begins < reached.get(row["worker"], 0):
            yield (
                f"federation {federation} has counted rows {begins + 1} to {reached[row['worker']]} of "
                f"{row['worker']} twice"
            )
        reached[row["worker"]] = row["rows_after"]


def campaigns(index: Index) -> Iterator[str]:
    """Yield each chunk that a campaign has skipped or repeated, and each cycle that has left no trace."""
    for campaign in index.rows.campaigns:
        seq, name = campaign["seq"], campaign["name"]
        cycles = [row for row in index.rows.campaign_cycles if row["campaign_seq"] == seq]
        done = [row for row in cycles if row["status"] == "completed"]
        positions = sorted(row["position"] for row in done)
        if len(set(positions)) != len(positions):
            yield f"campaign {name} has trained on a chunk twice: positions {positions}"
        if positions and positions != list(range(positions[0], positions[0] + len(positions))):
            yield f"campaign {name} has left out a chunk: positions {positions}"
        for row in cycles:
            if row["status"] == "failed":
                yield f"cycle {row['number']} of campaign {name} has failed: {row['error']}"
        steps = [row for row in index.rows.campaign_steps if row["campaign_seq"] == seq]
        orders = Counter(
            outcome["task_id"]
            for row in steps
            if row["step"] == "submit" and (outcome := told(row, "outcome")) and "task_id" in outcome
        )
        for task_id, count in orders.items():
            if count > 1:
                yield f"campaign {name} has taken task {task_id} for {count} cycles"
        versions = Counter(row["cycle"] for row in index.rows.model_versions if row["campaign_id"] == campaign["id"])
        for row in done:
            if versions[row["number"]] != 1:
                yield f"cycle {row['number']} of campaign {name} has {versions[row['number']]} versions of the model"
