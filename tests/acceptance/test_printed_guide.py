"""The upload guide's printed blocks themselves, where the guide is given: `pytest --upload-guide PATH`.

They get only what they lack: imports, `version` kept where the next function looks for it, an `upload_adapter` made of
the blocks before, and a loop that ends.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.api.test_process import server
from tests.libraries import required

_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LOOP = "# Main training loop"
STEPS, SYNC_INTERVAL = 9, 3


@pytest.fixture
def blocks(request: pytest.FixtureRequest) -> list[str]:
    """The blocks of the guide's new way, in their order: save, pack, upload, apply."""
    path = request.config.getoption("--upload-guide")
    if path is None:
        pytest.skip("the guide is not given (--upload-guide PATH)")
    found = _BLOCK.findall(Path(path).read_text(encoding="utf-8"))
    new = [block for block in found if "gradients" not in block]
    assert len(new) == 4, "save, pack, upload, apply"
    return new


@pytest.fixture
def site(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[tuple[str, str]]:
    port, data = free_port(), tmp_path / "data"
    with server(data, port):
        yield f"http://127.0.0.1:{port}", (data / "keys" / "admin.key").read_text().strip()


class Tokenizer:
    """As much of one as the guide uses."""

    def save_pretrained(self, folder: str) -> None:
        (Path(folder) / "tokenizer.json").write_text("{}")


class Printed:
    """A worker that runs the printed blocks.

    Args:
        blocks: Of the guide.
        url: With the token in it.
        job: The federation's number.
        worker: The worker's.
        folder: Takes the place of `/tmp`.
    """

    def __init__(self, blocks: list[str], url: str, job: int, worker: int, folder: Path) -> None:
        import requests
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        tiny = LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=32,
        )  # fmt: skip
        self.model = get_peft_model(LlamaForCausalLM(tiny), LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"]))
        trained = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-2)
        torch.manual_seed(worker)
        self.rows = torch.randint(0, 32, (4, 8))
        self.space: dict[str, Any] = {
            "AION_URL": url, "JOB_ID": job, "WORKER_ID": worker, "model": self.model, "tokenizer": Tokenizer(),
            "chunk_size": 4 * SYNC_INTERVAL, "current_version": 0, "version": 0, "os": os, "requests": requests,
        }  # fmt: skip
        self.results: list[dict[str, Any]] = []
        folder.mkdir()
        save, pack, upload, apply = (block.replace("/tmp/", f"{folder}/") for block in blocks)
        steps = textwrap.indent("\n".join((save, pack, upload)), "    ")
        functions = apply.partition(_LOOP)[0].replace(
            "def check_for_checkpoint():\n", "def check_for_checkpoint():\n    global version\n"
        )
        self.run(f"def upload_adapter(global_step):\n{steps}\n    return result\n")
        self.run(functions)

    def run(self, code: str) -> None:
        exec(code, self.space)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(input_ids=self.rows, labels=self.rows).loss.backward()
            self.optimizer.step()

    def synchronise(self, step: int) -> None:
        """Do what the guide's loop does at a step."""
        self.results.append(self.space["upload_adapter"](step))

    def look(self) -> int:
        """Do the second half of it, and return the version that the worker has."""
        url = self.space["check_for_checkpoint"]()
        if url:
            path = self.space["download_checkpoint"](url)
            self.space["current_version"] = self.space["apply_checkpoint"](path)
        version: int = self.space["current_version"]
        return version


@pytest.mark.torch
@pytest.mark.proof
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_printed_blocks_train_until_their_recipe_stops_them(
    blocks: list[str], site: tuple[str, str], tmp_path: Path
) -> None:
    required("torch", "peft", "transformers", "requests")
    url, key = site
    made = httpx.post(
        f"{url}/api/training/jobs",
        json={"name": "printed", "fed_config": {"min_workers": 2}},
        headers={"Authorization": f"Bearer {key}"},
    ).json()
    with_token = url.replace("://", f"://:{made['token']}@")
    pair = [Printed(blocks, with_token, made["job"]["id"], number, tmp_path / f"w{number}") for number in (1, 2)]
    for step in range(SYNC_INTERVAL, STEPS + 1, SYNC_INTERVAL):
        for worker in pair:
            worker.train(SYNC_INTERVAL)
            worker.synchronise(step)
        if step == SYNC_INTERVAL:
            for worker in pair:
                while worker.look() < 1:
                    pass
    one, two = pair
    assert [result["shouldAggregate"] for result in one.results] == [False, False, False]
    assert [result["shouldAggregate"] for result in two.results] == [True, False, False]
    assert [worker.space["current_version"] for worker in pair] == [1, 1]
    for worker in pair:
        assert worker.results[0]["warning"] is None
        for result in worker.results[1:]:
            assert "aggregated/" in result["warning"], "nothing was trained since the reload, and it says so"
