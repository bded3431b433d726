"""`tunefleet retry` of a workflow: with a change, and a second time."""

from __future__ import annotations

import pytest

from tests.integration.api.support import HandWorker
from tests.integration.client.conftest import Cli
from tunefleet.client import Client
from tunefleet.spec.expressions import result_keys


@pytest.fixture(autouse=True)
def any_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind whose results are not known: what is mistyped shows when it runs."""
    others = {kind: keys for kind, keys in result_keys.RESULT_KEYS.items() if kind != "echo"}
    monkeypatch.setattr(result_keys, "RESULT_KEYS", others)


MISTYPED = """apiVersion: tunefleet/v1
metadata: {name: two}
spec:
  taskType: echo
  stages:
    - {name: first, spec: {data: {type: list, items: [a]}}}
    - {name: second, spec: {data: {type: list, items: ["${first.result.okay}"]}}}
"""


def test_a_mistyped_reference_is_mended_and_a_second_retry_is_refused(
    cli: Cli, client: Client, hand: HandWorker
) -> None:
    flow = client.submit(MISTYPED).workflow
    first, second = flow.tasks
    hand.finish(hand.take(first.id))
    assert client.tasks.get(second.id).reason == "bad_input"
    assert f"tunefleet retry {flow.id} --set FIELD=VALUE" in " ".join(cli("show", flow.id).out.split())
    refused = cli("retry", second.id, "--set", "data.items=[1]")
    assert refused.code == 3
    assert f"tunefleet clone {second.id} --set" in refused.err
    change = "stages.second.spec.data.items=['${first.result.ok}']"
    (made,) = cli("retry", flow.id, "--set", change, "--json").json
    assert (made["name"], made["parent_task_id"]) == ("second", second.id)
    newer = made["workflow_id"]
    assert client.tasks.get(made["id"]).resolved == {"taskType": "echo", "data": {"type": "list", "items": [True]}}
    again = cli("retry", flow.id)
    assert again.code == 5
    assert f"was retried as {newer}, which is running" in " ".join(again.err.split())
    hand.finish(hand.take(made["id"]))
    assert f"Retried as {newer} (completed)" in cli("show", flow.id).out
    assert cli("retry", flow.id, "--set", change, "--again").code == 0


def test_a_retry_over_http_needs_no_body(client: Client, hand: HandWorker) -> None:
    flow = client.submit(MISTYPED).workflow
    client.workflows.cancel(flow.id)
    made = client.workflows.retry(flow.id)
    assert [task.name for task in made.tasks] == ["first", "second"]
    client.workflows.cancel(made.id)
