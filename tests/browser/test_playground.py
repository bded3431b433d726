"""The playground in a real browser: what it shows of an answer is what the model says, and none of it is run."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser import looks
from tests.browser.conftest import PATIENCE_MS, PATIENCE_S
from tests.integration.api.support import until
from tunefleet.client import Client
from tunefleet.schemas.chat import ChatMessage, ChatRequest

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(900)]
MERGE = """apiVersion: tunefleet/v1
kind: MergeTask
metadata: {{name: merged}}
spec:
  taskType: merge
  model:
    source: {{identifier: "builtin:gsm8k-llama-2m"}}
    adapters: [{{taskId: {task}}}]
  output: {{artifacts: [final_model]}}
"""
ASKED = '<img src="x" onerror="document.title=1"> Betty has 12 eggs. She buys'


def answer(page: Page, model: str) -> str:
    """Return the newest answer of a model, once it is whole."""
    shown = page.locator(f'.turn:last-of-type .text[data-model="{model}"]')
    expect(shown).to_have_attribute("aria-busy", "false", timeout=PATIENCE_MS)
    return shown.text_content() or ""


def told(client: Client, task_id: str, model: str, *messages: str) -> str:
    """Return what the model answers over the API, never drawn."""
    said = tuple(ChatMessage(role=("user", "assistant")[n % 2], content=text) for n, text in enumerate(messages))
    request = ChatRequest(messages=said, model=model, temperature=0.0, max_tokens=24)
    return "".join(piece.text for piece in client.tasks.chat(task_id, request))


def test_base_and_tuned_answer_beside_each_other(entered: Page, client: Client, trained: str, axe: str) -> None:
    entered.goto(f"/ui/tasks/{trained}?tab=files")
    entered.get_by_role("link", name="Chat", exact=True).click()
    entered.get_by_label("Chat template").select_option("false")
    entered.get_by_role("button", name="Chat", exact=True).click()
    entered.wait_for_url(re.compile("task=task-(?!" + trained.removeprefix("task-") + ")"))
    session = entered.url.rpartition("=")[2]
    spec = client.tasks.get(session).spec
    assert (spec["checkpoint"]["load"], spec["inference"]["chat_template"]) == ({"taskId": trained}, False)

    message = entered.get_by_label("Message", exact=True)
    expect(entered.get_by_role("status").filter(has_text="Ready on")).to_be_visible(timeout=PATIENCE_MS)
    entered.get_by_text("Sampling parameters").click()
    entered.get_by_label("Temperature").fill("0")
    entered.get_by_label("Max tokens").fill("24")
    message.fill("a line")
    message.press("Shift+Enter")
    assert message.input_value() == "a line\n"
    message.fill(ASKED)
    message.press("Enter")
    for model in ("base", "tuned"):
        first = answer(entered, model)
        assert first == told(client, session, model, ASKED)
    assert answer(entered, "base") != ""
    expect(entered.locator(".question")).to_have_text(ASKED)
    expect(entered.locator(".conversation img")).to_have_count(0)

    looks.check(entered, axe)

    # The second turn has the first one as its past, each model its own.
    past = {model: answer(entered, model) for model in ("base", "tuned")}
    message.fill("And 3 dozen?")
    message.press("Enter")
    expect(entered.locator(".turn")).to_have_count(2)
    for model, before in past.items():
        assert answer(entered, model) == told(client, session, model, ASKED, before, "And 3 dozen?")

    # So freely drawn it ends nowhere by itself within reach of a click.
    entered.get_by_label("Temperature").fill("100")
    entered.get_by_label("Max tokens").fill("100000")
    message.fill("On and on?")
    message.press("Enter")
    expect(entered.locator(".turn:last-of-type .text").first).not_to_be_empty(timeout=PATIENCE_MS)
    entered.get_by_role("button", name="Stop").click()
    expect(entered.locator(".turn:last-of-type")).to_contain_text("stopped")
    expect(entered.get_by_role("button", name="Send")).to_be_visible()
    until(lambda: client.tasks.get_chat(session).waiting == 0)

    # Who opens the address joins the same session.
    entered.reload()
    expect(entered.get_by_text("Ready on")).to_be_visible()
    entered.get_by_role("button", name="End chat").click()
    assert client.tasks.wait(session, timeout_s=PATIENCE_S).status == "completed"
    expect(entered.get_by_text("The chat is completed")).to_be_visible(timeout=PATIENCE_MS)
    expect(message).to_be_visible()
    expect(entered.get_by_role("button", name="Send")).to_be_disabled()


def test_a_merged_model_answers_beside_the_one_that_it_was_made_of(entered: Page, client: Client, trained: str) -> None:
    merged = client.submit(MERGE.format(task=trained)).task_id
    assert client.tasks.wait(merged, timeout_s=PATIENCE_S).status == "completed"
    assert [each.kind for each in client.artifacts.list(task_id=merged).items] == ["model"]
    entered.goto("/ui/playground")
    entered.get_by_role("combobox", name="Run").select_option(merged)
    entered.get_by_label("Chat template").select_option("false")
    entered.get_by_role("button", name="Chat", exact=True).click()
    entered.wait_for_url("**/ui/playground?task=task-*")
    session = entered.url.rpartition("=")[2]
    assert client.tasks.get(session).spec["checkpoint"]["load"] == {"taskId": merged}
    expect(entered.get_by_role("status").filter(has_text="Ready on")).to_be_visible(timeout=PATIENCE_MS)
    entered.get_by_text("Sampling parameters").click()
    entered.get_by_label("Temperature").fill("0")
    entered.get_by_label("Max tokens").fill("24")
    message = entered.get_by_label("Message", exact=True)
    message.fill(ASKED)
    message.press("Enter")
    for model in client.tasks.get_chat(session).models:
        assert answer(entered, model) == told(client, session, model, ASKED)
    assert told(client, session, "tuned", ASKED) != told(client, session, "base", ASKED)
    entered.get_by_role("button", name="End chat").click()
    assert client.tasks.wait(session, timeout_s=PATIENCE_S).status == "completed"


def test_a_chat_that_waits_says_why_and_can_be_ended(entered: Page, client: Client) -> None:
    entered.goto("/ui/playground")
    entered.get_by_label("Hub id").fill("builtin:gsm8k-llama-2m")
    busy = client.submit(
        "apiVersion: tunefleet/v1\nkind: Workflow\nmetadata: {name: holds}\nspec:\n  taskType: chat\n"
        "  model: {source: {identifier: builtin:gsm8k-llama-2m}}\n"
    ).task_id
    until(lambda: client.tasks.get(busy).status in {"dispatched", "running"})
    entered.get_by_role("button", name="Start chat").click()
    entered.wait_for_url("**/ui/playground?task=task-*")
    session = entered.url.rpartition("=")[2]
    why = client.tasks.get(session).why or "?"
    expect(entered.get_by_role("status").filter(has_text=why[:40])).to_be_visible(timeout=PATIENCE_MS)
    entered.get_by_role("button", name="End chat").click()
    until(lambda: client.tasks.get(session).status == "cancelled")
    client.tasks.cancel(busy)
