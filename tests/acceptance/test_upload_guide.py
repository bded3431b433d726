"""The upload guide's sequence from end to end: a server and workers as processes that know nothing but a URL."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance import guide_worker
from tests.integration.api.test_process import server

pytestmark = pytest.mark.proof


@dataclass
class Site:
    """A server that runs, and its admin's key."""

    url: str
    key: str

    def make_job(self, **fed_config: Any) -> dict[str, Any]:
        reply = httpx.post(
            f"{self.url}/api/training/jobs",
            json={
                "name": "guide",
                "model_type": guide_worker.CONFIG["base_model_name_or_path"],
                "fed_config": fed_config,
            },
            headers={"Authorization": f"Bearer {self.key}"},
        )
        assert reply.status_code == 201, reply.text
        made: dict[str, Any] = reply.json()
        return made

    @contextmanager
    def work(self, made: dict[str, Any], worker_id: int, *more: str) -> Iterator[subprocess.Popen[str]]:
        """Start a worker; it is given a URL with a token in it, a whole number for the job and one for itself."""
        url = self.url.replace("://", f"://:{made['token']}@")
        command = [sys.executable, guide_worker.__file__, url, str(made["job"]["id"]), str(worker_id), *more]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[Site]:
    data: Path = tmp_path_factory.mktemp("data")
    port = free_port()
    with server(data, port):
        yield Site(f"http://127.0.0.1:{port}", (data / "keys" / "admin.key").read_text().strip())


def told(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Wait for a worker and return what it printed at each synchronisation."""
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_two_workers_of_the_guides_train_one_adapter(site: Site) -> None:
    made = site.make_job(aggregation_algorithm="fedavg_exact", sync_interval=100, min_workers=2)
    with (
        site.work(made, 1, "--target", "0.5", "--examples", "300") as one,
        site.work(made, 2, "--target", "1.5", "--examples", "100") as two,
    ):
        both = told(one), told(two)
    for lines in both:
        assert [line["version"] for line in lines] == [1, 2, 3], "each is downloaded and loaded"
        assert [line["warning"] for line in lines] == [None, None, None]
        assert [line["round"] for line in lines] == [1, 2, 3]
        # What is loaded is the others' too; training goes on from there, and gets better at its own again.
        for before, after in pairwise(lines):
            assert after["loss"] < before["after"]
    headers = {"Authorization": f"Bearer {site.key}"}
    newest = httpx.get(f"{site.url}/api/v1/federations/{made['job']['id']}/versions/3", headers=headers).json()
    assert {each["worker"]: each["weight"] for each in newest["contributions"]} == {"1": 0.75, "2": 0.25}
    assert "tokenizer.json" in [file["path"] for file in newest["files"]]


def test_the_printed_recipe_stops_learning_and_the_answer_says_so(site: Site) -> None:
    made = site.make_job(min_workers=1)
    with site.work(made, 1, "--recipe", "--patience", "20") as worker:
        first, *later = told(worker)
    assert (first["version"], first["warning"]) == (1, None)
    assert len(later) == 2
    for line in later:
        assert line["loss"] == later[0]["loss"], "nothing is trained any more"
        assert line["shouldAggregate"] is False
        assert "aggregated/" in line["warning"]
        assert "is_trainable=True" in line["warning"]
        assert line["version"] == 1, "and nothing of it has counted"
