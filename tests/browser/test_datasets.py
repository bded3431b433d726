"""From a dataset to a task, in a real browser: what is marked is what a training learns, what is submitted is seen."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser import looks
from tests.browser.conftest import PATIENCE_MS, PATIENCE_S
from tests.integration.api.support import until
from tests.libraries import required
from tunefleet.client import Client
from tunefleet.schemas.api import ArtifactView
from tunefleet.spec import TrainingTaskSpec, parse_workflow

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(900)]

CHATS = [
    {
        "messages": [
            {"role": "user", "content": f"How many are {n} dozen eggs?"},
            {"role": "assistant", "content": f"{n} dozen eggs are {12 * n} eggs."},
            {"role": "user", "content": "And halves <b>of</b> them?"},
            {"role": "assistant", "content": f"{24 * n}."},
        ]
    }
    for n in range(1, 61)
]
FORMATS = {
    "chats": CHATS[:3],
    "Alpaca": [{"instruction": "Add 1 and 1", "input": "as a word", "output": "two"}],
    "ShareGPT": [{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]}],
    "preferences": [{"prompt": "Hi", "chosen": "Yo", "rejected": "No"}],
    "plain text": [{"text": "Once upon a time."}],
}


def written(folder: Path, name: str, rows: list[Any]) -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def choose(page: Page, path: Path) -> None:
    page.get_by_label("Data file").set_input_files(path)


def pushed(client: Client, name: str) -> ArtifactView:
    (found,) = [each for each in client.data.iterate(name=name) if each.task_id is None]
    return found


@pytest.fixture
def datasets(entered: Page) -> Page:
    entered.goto("/ui/datasets")
    entered.get_by_role("heading", name="Datasets").wait_for()
    return entered


def test_each_format_is_recognised_and_what_came_is_what_was_sent(
    datasets: Page, client: Client, tmp_path: Path
) -> None:
    for place, (said, rows) in enumerate(FORMATS.items()):
        path = written(tmp_path, f"naïve {place}.jsonl", rows)
        choose(datasets, path)
        heading = datasets.get_by_role("heading", name=path.name)
        expect(heading).to_contain_text(said)
        (file,) = client.data.get(pushed(client, path.name).id).files
        assert file.digest == hashlib.sha256(path.read_bytes()).hexdigest()
        expect(datasets.locator(".facts-line")).to_contain_text(f"{len(rows)} rows")
    for place in range(len(FORMATS)):
        listed = datasets.get_by_label("Datasets").get_by_role("link", name=f"naïve {place}.jsonl")
        expect(listed).to_have_count(1)


def test_a_broken_upload_goes_on_where_it_was(datasets: Page, client: Client, tmp_path: Path) -> None:
    path = written(tmp_path, "large.jsonl", [{"text": f"{n} " + "x" * 1000} for n in range(9_000)])
    offsets: list[int] = []

    def breaking(route: Route) -> None:
        offsets.append(int(route.request.headers["upload-offset"]))
        if len(offsets) == 2:
            route.abort("connectionreset")
        else:
            route.continue_()

    datasets.route(re.compile(r"/api/v1/blobs/[0-9a-f]{64}$"), breaking)
    choose(datasets, path)
    datasets.get_by_role("heading", name=path.name).wait_for(timeout=PATIENCE_MS)
    piece = 4 << 20
    assert offsets == [0, piece, piece, 2 * piece]
    (file,) = client.data.get(pushed(client, path.name).id).files
    assert file.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_bad_file_is_refused_line_by_line_before_it_travels(datasets: Page, client: Client, tmp_path: Path) -> None:
    faults = datasets.get_by_label("Upload").get_by_label("Errors")
    mixed = written(tmp_path, "mixed.jsonl", [{"prompt": "a", "response": "b"}, {"prompt": "a", "answer": "b"}])
    mixed.write_bytes(mixed.read_bytes() + b"{nope\n" + b'{"prompt": "\xe9"}\n')
    choose(datasets, mixed)
    expect(faults).to_contain_text("3 errors in mixed.jsonl")
    for said in (
        "Line 2 of mixed.jsonl: it has no column 'response'",
        "Line 3 of",
        "Line 4 of mixed.jsonl is not UTF-8",
    ):
        expect(faults).to_contain_text(said)
    for name, content, said in (("empty.jsonl", b"", "has no rows"), ("notes.txt", b"x", "suffix '.txt'")):
        (tmp_path / name).write_bytes(content)
        choose(datasets, tmp_path / name)
        expect(faults).to_contain_text(said)
    datasets.get_by_role("button", name="Cancel").click()
    expect(faults).to_have_count(0)
    assert list(client.data.iterate(name="mixed.jsonl,empty.jsonl,notes.txt")) == []


def test_the_mask_is_that_of_the_training_and_a_training_is_made_of_it(
    datasets: Page, client: Client, tmp_path: Path
) -> None:
    required("trl")
    path = written(tmp_path, "eggs.jsonl", CHATS)
    choose(datasets, path)
    # Until it is there, the page shows the newest of those that are.
    datasets.get_by_role("heading", name=path.name).wait_for(timeout=PATIENCE_MS)
    datasets.get_by_role("button", name="Tokens", exact=True).click()
    datasets.get_by_label("Max sequence length").fill("32")
    datasets.get_by_role("button", name="Tokenize").click()
    datasets.get_by_text("Row length, tokens").wait_for(timeout=PATIENCE_MS)
    drawn = [
        [
            {"text": span.text_content(), "state": (span.get_attribute("class") or "").removeprefix("mask ")}
            for span in row.locator(".mask").all()
        ]
        for row in datasets.locator(".masked").all()
    ]
    assert drawn == _masks(path, rows=5, max_seq_length=32)
    assert {piece["state"] for row in drawn for piece in row} == {"context", "counts", "cut-off"}

    datasets.get_by_role("link", name="Train on this").click()
    datasets.get_by_role("button", name="Next: Method").click()
    datasets.get_by_text("Advanced settings").click()
    for label, value in (("max steps", "2"), ("batch size", "2"), ("max seq length", "64")):
        datasets.get_by_label(label, exact=True).fill(value)
        datasets.get_by_label(label, exact=True).press("Enter")
    datasets.get_by_role("button", name="Next: Review").click()
    expect(datasets.get_by_text("eligible", exact=True)).to_be_visible(timeout=PATIENCE_MS)
    datasets.get_by_role("button", name="Start", exact=True).click()
    datasets.wait_for_url("**/ui/tasks/task-*")
    task_id = datasets.url.rpartition("/")[2]
    data = client.tasks.get(task_id).spec["data"]
    assert (data["artifact"], data["messages_field"]) == ("eggs.jsonl", "messages")
    done = client.tasks.wait(task_id, timeout_s=PATIENCE_S)
    assert done.status == "completed", done.error


def _masks(path: Path, *, rows: int, max_seq_length: int) -> list[list[dict[str, str]]]:
    """Return what the program says that a training of the same rows learns."""
    from tunefleet.workloads.data.preview import preview

    document = {
        "apiVersion": "tunefleet/v1",
        "kind": "Workflow",
        "metadata": {"name": "eggs"},
        "spec": {
            "taskType": "lora_sft",
            "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
            "data": {"path": str(path), "messages_field": "messages"},
            "training": {"max_seq_length": max_seq_length},
        },
    }
    spec = parse_workflow(json.dumps(document)).tasks[0].spec
    assert isinstance(spec, TrainingTaskSpec)
    found = preview(spec, path.parent, rows=rows)

    def state(piece: dict[str, Any]) -> str:
        return "cut-off" if piece["cut"] else "counts" if piece["trained"] else "context"

    return [[{"text": piece["text"], "state": state(piece)} for piece in row["pieces"]] for row in found["rows"]]


def test_a_dataset_is_removed(datasets: Page, client: Client, tmp_path: Path) -> None:
    path = written(tmp_path, "gone.jsonl", [{"text": "x"}])
    choose(datasets, path)
    datasets.get_by_role("heading", name=path.name).wait_for()
    datasets.get_by_role("button", name="Remove").click()
    datasets.get_by_role("dialog").get_by_role("button", name="Remove").click()
    until(lambda: not list(client.data.iterate(name=path.name)))
    expect(datasets.get_by_role("link", name=path.name)).to_have_count(0)


def set_field(page: Page, label: str, value: str) -> None:
    page.get_by_label(label).fill(value)
    page.get_by_label(label).press("Enter")


def needed(page: Page) -> int:
    """Return how many bytes the training takes as it is written."""
    return int(page.locator(".memory .written [data-bytes]").get_attribute("data-bytes") or 0)


def test_the_gallery_is_that_of_the_server(entered: Page) -> None:
    entered.goto("/ui/new")
    examples = entered.request.get("/api/v1/examples").json()
    cards = entered.locator(".gallery button")
    expect(cards).to_have_count(len(examples))
    kinds = [", ".join(each["kinds"]) for each in examples]
    assert [text.strip() for text in cards.locator(".kinds").all_inner_texts()] == kinds


def test_four_bits_are_chosen_in_the_form_and_take_less_memory(entered: Page, client: Client) -> None:
    entered.goto("/ui/new?template=lora_sft")
    text = entered.locator(".cm-content")
    expect(entered.locator(".memory li")).to_have_count(4, timeout=PATIENCE_MS)
    expect(entered.locator(".memory .written")).to_have_attribute("data-variant", "adapter")
    before = needed(entered)

    entered.get_by_label("Quantization").select_option("4")
    entered.get_by_label("Data type").select_option("fp4")
    entered.get_by_label("Double quantization").select_option("false")
    entered.get_by_label("Compute dtype").select_option("float32")
    set_field(entered, "LoRA rank", "4")
    set_field(entered, "LoRA targets", "q_proj, v_proj")
    set_field(entered, "Steps", "1")
    expect(text).to_contain_text("load_in_4bit: true")
    expect(text).to_contain_text("# or a Hub id such as")
    expect(entered.locator(".memory .written")).to_have_attribute("data-variant", "adapter_4bit", timeout=PATIENCE_MS)
    expect(entered.locator(".memory .written [data-bytes]")).not_to_have_attribute("data-bytes", str(before))
    whole = int(entered.locator('[data-variant="whole"] [data-bytes]').get_attribute("data-bytes") or 0)
    assert needed(entered) < before < whole
    worker = client.workers.list().items[0].id
    expect(entered.locator(".placements")).to_contain_text(worker)

    entered.get_by_role("button", name="Submit", exact=True).click()
    entered.wait_for_url("**/ui/tasks/task-*")
    task = client.tasks.get(entered.url.rpartition("/")[2])
    client.tasks.cancel(task.id)
    quantization = {"load_in_4bit": True, "quant_type": "fp4", "double_quant": False, "compute_dtype": "float32"}
    assert {name: task.spec["quantization"][name] for name in quantization} == quantization
    assert (task.spec["lora"]["r"], list(task.spec["lora"]["target_modules"])) == (4, ["q_proj", "v_proj"])
    assert task.spec["training"]["max_steps"] == 1


def test_what_is_typed_stands_in_the_form(entered: Page) -> None:
    entered.goto("/ui/new?template=lora_sft")
    text = entered.locator(".cm-content")
    text.wait_for()
    entered.get_by_label("Quantization").select_option("8")
    expect(text).to_contain_text("load_in_8bit: true")
    expect(entered.get_by_label("Data type")).to_have_count(0)
    entered.locator(".cm-line", has_text="max_steps: 260").click()
    entered.keyboard.press("End")
    entered.keyboard.type("0")
    expect(entered.get_by_label("Steps")).to_have_value("2600")


def test_data_of_runs_is_in_a_list_of_its_own(entered: Page, client: Client, axe: str) -> None:
    made = client.submit(
        "apiVersion: tunefleet/v1\nkind: Workflow\nmetadata: {name: sampled}\nspec:\n  taskType: data\n"
        "  sources: [{path: 'builtin:gsm8k'}]\n  steps: [{sample: {count: 5, seed: 1}}]\n"
    ).task_id
    ended = client.tasks.wait(made, timeout_s=PATIENCE_S)
    assert ended.status == "completed", ended.error
    entered.goto("/ui/datasets")
    entered.get_by_label("Data file").set_input_files(
        {"name": "own.jsonl", "mimeType": "text/plain", "buffer": b'{"question": "1 + 1?", "answer": "2"}\n'}
    )
    entered.wait_for_url("**/ui/datasets?id=*")
    listed = entered.get_by_role("navigation", name="Datasets")
    expect(listed).to_contain_text("own.jsonl")
    expect(listed).not_to_contain_text("from a run")
    entered.get_by_role("button", name="From runs").click()
    expect(listed).to_contain_text("from a run")
    expect(listed).not_to_contain_text("own.jsonl")
    looks.check(entered, axe)
