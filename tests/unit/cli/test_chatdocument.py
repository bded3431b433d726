"""What `tunefleet chat` asks of a worker is a document like any other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tunefleet.cli.models.chat_commands import Options, document_for, start
from tunefleet.client import Client
from tunefleet.schemas.api import SubmitRequest, TaskDetail
from tunefleet.spec import parse_workflow
from tunefleet.spec.tasks.item_tasks import ChatTaskSpec


@pytest.mark.parametrize("given", [None, True, False])
def test_the_chat_template_is_the_users_to_choose(given: bool | None) -> None:
    text = document_for("builtin:gsm8k-llama-2m", None, Options(system="Be brief.", chat_template=given, idle_s=60))
    spec = parse_workflow(text).tasks[0].spec
    assert isinstance(spec, ChatTaskSpec)
    assert (spec.inference.chat_template, spec.inference.system_prompt, spec.idle_s) == (given, "Be brief.", 60)


def test_a_base_that_was_uploaded_for_the_run_needs_no_folder_here() -> None:
    made: list[SubmitRequest] = []

    def create(request: SubmitRequest, _key: str) -> SimpleNamespace:
        made.append(request)
        return SimpleNamespace(tasks=(SimpleNamespace(id="task-2"),))

    client = SimpleNamespace(workflows=SimpleNamespace(create=create))
    run = SimpleNamespace(inputs={"model.source.identifier": "d" * 64, "data.path": "e" * 64})
    text = '{"metadata": {"name": "chat-with-mine"}}'
    assert start(cast(Client, client), text, cast(TaskDetail, run)) == "task-2"
    assert [request.inputs for request in made] == [{"chat-with-mine": {"model.source.identifier": "d" * 64}}]
