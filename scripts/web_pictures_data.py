"""The pictures of datasets, a new task from one, models and the playground; `scripts.web_pictures` draws them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, expect

from tunefleet.client import Client

CHAT: Final = "playground-chat"
"""The page of a chat; something is said on it."""
_SAID: Final = ("A baker has 12 eggs. She buys 8 more.",)
_CHATS = 400
_PATIENCE_S = 900.0


def prepare(client: Client, trained: str, folder: Path) -> dict[str, str]:
    """Let something happen that can be shown; return page → address.

    Args:
        client: Of the server.
        trained: A task that has trained an adapter.
        folder: For files.
    """
    path = folder / "support-chats.jsonl"
    path.write_text("".join(json.dumps(_chat(number)) + "\n" for number in range(1, _CHATS)), encoding="utf-8")
    pushed = client.data.push(path, kind="dataset")
    look = {
        "taskType": "data",
        "sources": [{"artifact": pushed.id}],
        "preview": {"model": "builtin:gsm8k-llama-2m", "messages_field": "messages", "max_seq_length": 96},
    }
    looked = _submit(client, "DataTask", "look at support-chats.jsonl", look)
    client.tasks.wait(looked, timeout_s=_PATIENCE_S)
    (adapter,) = client.artifacts.list(task_id=trained, kind="adapter").items
    return {
        "models": f"/ui/models?id={adapter.id}",
        "datasets": f"/ui/datasets?id={pushed.id}",
        "datasets-tokens": f"/ui/datasets?id={pushed.id}&preview={looked}",
        "new-from-dataset": f"/ui/new?data={pushed.id}",
        "playground": f"/ui/playground?task={trained}",
        CHAT: f"/ui/playground?task={_chat_with(client, trained)}",
    }


def say(page: Page) -> None:
    """Say something, and wait for the answers."""
    # Closed on a phone.
    page.locator("details.sampling").evaluate("settings => { settings.open = true; }")
    page.get_by_label("Max tokens").fill("48")
    message = page.get_by_label("Message", exact=True)
    for turn, text in enumerate(_SAID, 1):
        message.fill(text)
        message.press("Enter")
        whole = page.locator(".turn .text[aria-busy=false]")
        expect(whole).to_have_count(2 * turn, timeout=1000 * _PATIENCE_S)


def _chat_with(client: Client, trained: str) -> str:
    """Begin a chat with what a task has trained; return its id once it is ready."""
    spec = {
        "taskType": "chat",
        "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
        "checkpoint": {"load": {"taskId": trained}},
        "inference": {"chat_template": False},
    }
    chat = _submit(client, "ChatTask", "chat with gsm8k-lora", spec)
    until = time.monotonic() + _PATIENCE_S
    while not client.tasks.get_chat(chat).ready:
        if time.monotonic() > until:
            raise SystemExit(f"The chat {chat} is not ready after {_PATIENCE_S:.0f} seconds.")
        time.sleep(0.5)
    return chat


def _submit(client: Client, kind: str, name: str, spec: dict[str, object]) -> str:
    document = {"apiVersion": "tunefleet/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    return client.submit(json.dumps(document)).task_id


def _chat(number: int) -> dict[str, object]:
    eggs = f"{number} dozen eggs are {number} times 12, which is {12 * number} eggs."
    return {
        "messages": [
            {"role": "system", "content": "You work for a grocer, and answer in a sentence."},
            {"role": "user", "content": f"How many are {number} dozen eggs?"},
            {"role": "assistant", "content": eggs + " They keep for four weeks in a cool place." * (number % 4)},
        ]
    }
