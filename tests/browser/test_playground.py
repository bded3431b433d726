"""The playground in a real browser: what it shows of an answer is what the model says, and none of it is run."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Locator, Page, expect

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
DPO = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {{name: preferred}}
spec:
  taskType: dpo
  model: {{source: {{identifier: "builtin:gsm8k-llama-2m"}}}}
  data: {{artifact: {data}}}
  lora: {{r: 4, target_modules: all-linear}}
  training: {{max_steps: 3, batch_size: 1, max_seq_length: 256}}
"""
PLAIN = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: plain}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {path: "builtin:gsm8k", prompt_column: question, response_column: answer, separator: " => ", max_samples: 8}
  lora: {r: 4, target_modules: all-linear}
  training: {max_steps: 2, batch_size: 1, max_seq_length: 128}
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


def entry(page: Page, name: str) -> Locator:
    """Return the entry of a model on the page that offers them."""
    link = page.get_by_role("link", name=name, exact=True)
    return page.locator(".entries li").filter(has=link)


def opened(page: Page) -> str:
    """Return the id of the chat that the page has just opened, once its model is loaded."""
    page.wait_for_url("**/ui/playground?task=task-*")
    expect(page.get_by_text("ready on")).to_be_visible(timeout=PATIENCE_MS)
    return page.url.rpartition("=")[2]


def exact(page: Page) -> None:
    """Have short answers that are never drawn, shown as they are."""
    page.get_by_role("button", name="Precise").click()
    page.get_by_label("Max tokens").fill("24")
    page.get_by_label("Format Markdown").uncheck()


def test_base_and_tuned_answer_beside_each_other(entered: Page, client: Client, trained: str, axe: str) -> None:
    entered.goto(f"/ui/tasks/{trained}?tab=files")
    entered.get_by_role("link", name="Chat", exact=True).click()
    entered.get_by_label("Chat template").select_option("false")
    looks.check(entered, axe)
    entered.locator(".entries .chosen").get_by_role("button", name="Chat").click()
    entered.wait_for_url(re.compile("task=task-(?!" + trained.removeprefix("task-") + ")"))
    session = opened(entered)
    task = client.tasks.get(session)
    (adapter,) = client.artifacts.list(task_id=trained, kind="adapter").items
    assert (task.inputs["checkpoint.load.path"], task.spec["inference"]["chat_template"]) == (adapter.digest, False)

    message = entered.get_by_label("Message", exact=True)
    exact(entered)
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
    expect(entered.locator(".answer.tuned")).to_contain_text(re.compile(r"\d+ tokens · [\d,]+ tokens/s"))
    entered.get_by_label("Format Markdown").check()
    expect(entered.locator(".conversation .markdown")).to_have_count(2)
    expect(entered.locator(".conversation img")).to_have_count(0)
    looks.check(entered, axe)
    entered.get_by_label("Format Markdown").uncheck()

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
    expect(entered.get_by_text("Your own values")).to_be_visible()
    message.fill("On and on?")
    message.press("Enter")
    expect(entered.locator(".turn:last-of-type .text").first).not_to_be_empty(timeout=PATIENCE_MS)
    entered.get_by_role("button", name="Stop").click()
    expect(entered.locator(".turn:last-of-type")).to_contain_text("stopped")
    expect(entered.get_by_role("button", name="Send")).to_be_visible()
    until(lambda: client.tasks.get_chat(session).waiting == 0)

    # Conversation and parameters survive a reload.
    entered.reload()
    expect(entered.get_by_text("ready on")).to_be_visible()
    expect(entered.locator(".turn")).to_have_count(3)
    expect(entered.get_by_label("Max tokens")).to_have_value("100000")
    entered.get_by_role("button", name="End chat").click()
    assert client.tasks.wait(session, timeout_s=PATIENCE_S).status == "completed"
    expect(entered.get_by_text("The chat is completed")).to_be_visible(timeout=PATIENCE_MS)
    expect(entered.get_by_role("button", name="Send")).to_be_disabled()

    # It continues with the model loaded again.
    entered.get_by_role("button", name="Load again").click()
    entered.wait_for_url(lambda url: session not in url)
    again = opened(entered)
    expect(entered.locator(".turn")).to_have_count(3)
    entered.get_by_role("button", name="End chat").click()
    assert client.tasks.wait(again, timeout_s=PATIENCE_S).status == "completed"
    entered.get_by_role("link", name="All models").click()
    conversations = entered.locator("section", has=entered.get_by_role("heading", name="Conversations"))
    expect(conversations.get_by_role("link", name=ASKED).first).to_be_visible()


def test_rated_answers_become_a_dataset_that_dpo_trains_on(
    entered: Page, client: Client, trained: str, axe: str
) -> None:
    name = client.tasks.get(trained).name
    entered.goto(f"/ui/playground?task={trained}")
    entered.get_by_label("Chat template").select_option("false")
    entered.locator(".entries .chosen").get_by_role("button", name="Chat").click()
    entered.wait_for_url(re.compile("task=task-(?!" + trained.removeprefix("task-") + ")"))
    session = opened(entered)
    exact(entered)
    message = entered.get_by_label("Message", exact=True)
    said = []
    for question in ("Betty has 12 eggs. She buys", "A farmer has 9 cows. He sells"):
        message.fill(question)
        message.press("Enter")
        expect(entered.locator(".turn:last-of-type .question")).to_have_text(question)
        said.append((question, *(answer(entered, model) for model in ("base", "tuned"))))
        entered.locator(".turn:last-of-type .answer.tuned").get_by_role("button", name="Good answer").click()
    expect(entered.get_by_text("2 rated answers")).to_be_visible()

    # Another answer of the same model counts, too.
    entered.get_by_role("button", name="Creative").click()
    last = entered.locator(".turn:last-of-type .answer.base")
    last.get_by_role("button", name="Regenerate").click()
    expect(last).to_contain_text("2 / 2")
    another = answer(entered, "base")
    last.get_by_role("button", name="Bad answer").click()
    last.get_by_role("button", name="Previous answer").click()
    expect(last).to_contain_text("1 / 2")
    assert answer(entered, "base") == said[1][1]
    expect(entered.get_by_text("3 rated answers · 2 preference pairs")).to_be_visible()
    looks.check(entered, axe)

    entered.get_by_role("button", name="Save as dataset").click()
    entered.get_by_label("Name", exact=True).fill("rated")
    entered.get_by_role("button", name="Save", exact=True).click()
    entered.wait_for_url("**/ui/datasets?id=*")
    expect(entered.get_by_text("preferences", exact=True)).to_be_visible()
    (saved,) = client.artifacts.list(kind="dataset", name="rated.jsonl").items
    (file,) = client.artifacts.get(saved.id).files
    text = entered.request.get(f"/api/v1/artifacts/{saved.id}/files/{file.path}").text()
    expected = [(said[0][0], said[0][2], said[0][1]), (said[1][0], said[1][2], another)]
    rows = [json.loads(line) for line in text.splitlines()]
    texts = [tuple(row[key] for key in ("prompt", "chosen", "rejected")) for row in rows]
    assert [tuple(each if isinstance(each, str) else each[-1]["content"] for each in row) for row in texts] == [
        (question, good.strip(), bad.strip()) for question, good, bad in expected
    ]
    client.tasks.end_chat(session)
    assert client.tasks.wait(session, timeout_s=PATIENCE_S).status == "completed"
    run = client.submit(DPO.format(data=saved.id)).task_id
    finished = client.tasks.wait(run, timeout_s=PATIENCE_S)
    assert finished.status == "completed", finished.error

    # They stay until they are cleared.
    entered.goto("/ui/playground")
    ratings = entered.locator("section", has=entered.get_by_role("heading", name="Ratings"))
    expect(ratings).to_contain_text(name)
    ratings.get_by_role("button", name="Clear").click()
    entered.get_by_role("dialog").get_by_role("button", name="Clear").click()
    expect(ratings).to_have_count(0)


def test_a_model_of_plain_text_is_asked_as_it_was_trained(entered: Page, client: Client) -> None:
    task = client.submit(PLAIN).task_id
    assert client.tasks.wait(task, timeout_s=PATIENCE_S).status == "completed"
    entered.goto("/ui/playground")
    entry(entered, "plain").get_by_role("button", name="Chat").click()
    session = opened(entered)
    assert client.tasks.get(session).spec["inference"]["chat_template"] is False
    exact(entered)
    message = entered.get_by_label("Message", exact=True)
    message.fill("Betty has 12 eggs.")
    message.press("Enter")
    first = answer(entered, "tuned")
    assert first == told(client, session, "tuned", "Betty has 12 eggs. => ")
    expect(entered.locator(".question")).to_have_text("Betty has 12 eggs.")
    client.tasks.end_chat(session)
    assert client.tasks.wait(session, timeout_s=PATIENCE_S).status == "completed"


def test_a_merged_model_answers_beside_the_one_that_it_was_made_of(entered: Page, client: Client, trained: str) -> None:
    merged = client.submit(MERGE.format(task=trained)).task_id
    assert client.tasks.wait(merged, timeout_s=PATIENCE_S).status == "completed"
    assert [each.kind for each in client.artifacts.list(task_id=merged).items] == ["model"]
    entered.goto("/ui/playground")
    entered.get_by_label("Chat template").select_option("false")
    expect(entry(entered, "merged")).to_contain_text("Merged")
    entry(entered, "merged").get_by_role("button", name="Chat").click()
    session = opened(entered)
    exact(entered)
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
    entered.get_by_label("Hugging Face id").fill("builtin:gsm8k-llama-2m")
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
