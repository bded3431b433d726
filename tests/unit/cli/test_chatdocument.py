"""What `tunefleet chat` asks of a worker is a document like any other."""

from __future__ import annotations

import pytest

from tunefleet.cli.models.chat_commands import Options, document_for
from tunefleet.spec import parse_workflow
from tunefleet.spec.tasks.item_tasks import ChatTaskSpec


@pytest.mark.parametrize("given", [None, True, False])
def test_the_chat_template_is_the_users_to_choose(given: bool | None) -> None:
    text = document_for("builtin:gsm8k-llama-2m", None, Options(system="Be brief.", chat_template=given, idle_s=60))
    spec = parse_workflow(text).tasks[0].spec
    assert isinstance(spec, ChatTaskSpec)
    assert (spec.inference.chat_template, spec.inference.system_prompt, spec.idle_s) == (given, "Be brief.", 60)
