"""What every system keeps that hands out machines; a subclass gives it as `cluster`, with two nodes of one core."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunefleet.integrations.clusters import Cluster, ClusterJobState, NodeRequest

PATIENCE_S = 40.0
ENDLESS = "while :; do sleep 0.1; done"


def ask(name: str, script: str, *, nodes: int = 2, **further: object) -> NodeRequest:
    """Nodes with one core each, for a script of the shell."""
    fields: dict[str, Any] = {"cpu": 1, "environment": {}, "patience_s": 4.0, "grace_s": 5.0, **further}
    return NodeRequest(name=name, nodes=nodes, nodes_max=nodes, command=("sh", "-c", script), **fields)


def until(
    cluster: Cluster, name: str, reached: Callable[[ClusterJobState], bool] = lambda seen: seen.stage == "ended"
) -> ClusterJobState:
    """Look at a job until it is as wanted."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        seen = cluster.look([name]).get(name)
        if seen is not None and reached(seen):
            return seen
        assert time.monotonic() < deadline, f"{name} stays {seen}"
        time.sleep(0.2)


def lines(path: Path, count: int) -> list[str]:
    """Wait for so many lines of a file."""
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert time.monotonic() < deadline, f"{path.name}: {path.read_text() if path.exists() else 'not there'}"
        time.sleep(0.1)
    return sorted(path.read_text().splitlines())


class ClusterContract:
    def test_each_node_gets_one_process_with_its_number_and_the_variables(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        script = f'echo "$TUNEFLEET_NODE $WORD" >> {out}; sleep 2'
        wanted = ask("two", script, environment={"WORD": 'it\'s "said"'})
        assert cluster.submit(wanted) == cluster.submit(wanted), "another job with that name is the same one"
        until(cluster, "two", lambda seen: seen.stage == "running")
        ended = until(cluster, "two")
        assert not ended.withdrawn
        assert not ended.hopeless
        assert lines(out, 2) == ['0 it\'s "said"', '1 it\'s "said"']

    def test_one_that_waits_says_why_and_begins_when_there_is_room(self, cluster: Cluster, tmp_path: Path) -> None:
        go, out = tmp_path / "go", tmp_path / "out"
        cluster.submit(ask("holds", f"while [ ! -e {go} ]; do sleep 0.1; done"))
        until(cluster, "holds", lambda seen: seen.stage == "running")
        cluster.submit(ask("waits", f"echo $TUNEFLEET_NODE >> {out}"))
        waits = until(cluster, "waits", self.waits_for_room)
        assert waits.reason
        go.touch()
        until(cluster, "waits")
        assert lines(out, 2) == ["0", "1"]
        assert cluster.look(["holds"])["holds"].stage == "ended"

    def test_a_cancelled_one_gets_sigterm_on_all_nodes_and_leaves_nothing(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        begun, heard = tmp_path / "begun", tmp_path / "heard"
        cluster.submit(ask("ends", f"trap 'echo x >> {heard}; exit 75' TERM; echo x >> {begun}; {ENDLESS}"))
        lines(begun, 2)
        cluster.cancel("ends")
        assert until(cluster, "ends").withdrawn
        assert lines(heard, 2) == ["x", "x"]
        cluster.cancel("ends")

    def test_what_ends_badly_says_so(self, cluster: Cluster) -> None:
        cluster.submit(ask("fails", "exit 3", nodes=1))
        failed = until(cluster, "fails")
        assert not failed.withdrawn
        assert not failed.hopeless
        assert "3" in failed.reason

    def test_one_that_nobody_has_asked_for_is_not_known(self, cluster: Cluster) -> None:
        assert cluster.look(["nobody"]) == {}
        cluster.cancel("nobody")

    def waits_for_room(self, seen: ClusterJobState) -> bool:
        """Whether it is said of a job that it waits for room, in the words of the cluster."""
        return seen.stage == "waiting" and bool(seen.reason)
