"""What a task needs is fetched from addresses that answer over HTTP."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker.receiver import Receiver, receiving
from tests.unit.worker.fakes import Running, World
from tests.unit.worker.test_bringing import ADAPTER, Lab, holds, packed
from tunefleet.errors import ArtifactError, InputError
from tunefleet.runtime.secrets import Secrets
from tunefleet.worker.transfers import Transfers


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    world = World(tmp_path / "results")
    running = Running(world)
    running.state.close()
    transfers = Transfers(
        server_url="http://ours.invalid:8000", folders=(world.results,), url_allow=("127.0.0.1",), patience_s=2
    )
    site = replace(running.site, transfers=transfers, secrets=Secrets({"KEY": "s3cret"}))
    return Lab(world.results, site)


def zipped(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def test_weights_are_fetched_beside_rows(lab: Lab, receiver: Receiver) -> None:
    lab.server.tasks["task-a"] = {"final_lora.tar.gz": packed(ADAPTER)}
    receiver.files["/rows.jsonl"] = b'{"text": "a"}'
    data = {"path": f"{receiver.url}/rows.jsonl", "text_field": "text"}
    assert lab.bring({"data": data, "checkpoint": {"load": {"taskId": "task-a"}}}).keys() == {
        "data.path",
        "checkpoint.load",
    }


def test_an_address_of_somebody_else_is_fetched_with_its_headers(lab: Lab, receiver: Receiver) -> None:
    receiver.files["/api/v1/results/task-z/files/model.bin"] = packed(ADAPTER, "w:xz")
    url = f"{receiver.url}/api/v1/results/task-z/files/model.bin"
    assert holds(lab.load(type="http", url=url, headers={"X-Key": "${secret:KEY}"})) == set(ADAPTER)
    assert receiver.seen[0].headers["X-Key"] == "s3cret"
    again = lab.load(type="http", base_url=f"{receiver.url}/", taskId="task-z", filename="model.bin")
    assert holds(again) == set(ADAPTER)
    assert len(receiver.seen) == 1, "what is here is not fetched again"


@pytest.mark.parametrize(
    ("content", "archive_format", "inside"),
    [
        (packed(ADAPTER), "auto", "extracted"),
        (packed(ADAPTER, "w:"), "tar", "extracted"),
        (packed(ADAPTER, "w:bz2", top=""), "tar.bz2", "extracted"),
        (zipped(ADAPTER), "zip", "extracted"),
        (zipped(ADAPTER), "auto", "extracted"),
        (packed(ADAPTER), "none", "weights"),
        (b"no archive", "auto", "weights"),
    ],
    ids=["gz", "tar", "bz2", "zip", "auto-zip", "none", "plain"],
)
def test_the_format_is_told_by_the_content(
    lab: Lab, receiver: Receiver, content: bytes, archive_format: str, inside: str
) -> None:
    receiver.files["/weights"] = content
    path = lab.load(type="http", url=f"{receiver.url}/weights", archive_format=archive_format)
    assert path.name == inside
    assert inside != "extracted" or holds(path) == set(ADAPTER)


def test_fault_24_an_archive_cannot_write_outside_its_folder(lab: Lab, receiver: Receiver) -> None:
    receiver.files["/evil"] = packed({"../../../escaped": b"x"})
    with pytest.raises(ArtifactError, match="unsafe"):
        lab.load(type="http", url=f"{receiver.url}/evil")
    assert not list(lab.results.parent.rglob("escaped"))


def test_fault_21_a_download_goes_on_where_it_broke_and_is_checked(lab: Lab, receiver: Receiver) -> None:
    data = packed({"model.safetensors": bytes(range(256)) * 4000}, "w:")
    receiver.files["/model.tar"] = data
    receiver.etag = f'"{hashlib.sha256(data).hexdigest()}"'
    receiver.cut_after = [300_000, 200_000]
    assert holds(lab.load(type="http", url=f"{receiver.url}/model.tar")) == {"model.safetensors"}
    ranges = [request.headers.get("Range") for request in receiver.seen]
    assert ranges == [None, "bytes=300000-", "bytes=500000-"]
    receiver.etag = '"' + "0" * 64 + '"'
    with pytest.raises(ArtifactError, match="corrupted in transfer"):
        lab.load(type="http", url=f"{receiver.url}/model.tar?other")


def test_fault_17_weights_that_cannot_be_had_are_an_error_and_never_left_out(lab: Lab, receiver: Receiver) -> None:
    with pytest.raises(InputError, match="404"):
        lab.load(type="http", url=f"{receiver.url}/nothing")
    site = replace(lab.site, transfers=replace(lab.site.transfers, url_allow=()))
    with pytest.raises(InputError, match=r"checkpoint\.load.*not a public address.*TUNEFLEET_URL_ALLOW"):
        Lab(lab.results, site).load(type="http", url=f"{receiver.url}/nothing")
    with pytest.raises(InputError, match=r"spec\.checkpoint\.load\.path"):
        lab.load(path="gone")


def test_rows_come_from_the_first_place_that_has_them(lab: Lab, receiver: Receiver) -> None:
    rows = b'{"text": "a"}\n'
    receiver.files["/rows.jsonl"] = rows
    lab.server.tasks["task-a"] = {"pairs.jsonl": rows}
    ours = "http://public.invalid/api/v1/results/task-a/files/pairs.jsonl?expires=1&signature=x"
    jsonl: dict[str, Any] = {"url": ours, "path": ours, "text_field": "text"}
    (found,) = lab.bring({"data": {"jsonl": jsonl}}).items()
    assert (found[0], found[1].name, found[1].read_bytes()) == ("data.jsonl.url", "pairs.jsonl", rows)
    (found,) = lab.bring({"data": {"path": f"{receiver.url}/rows.jsonl", "text_field": "text"}}).items()
    assert (found[0], json.loads(found[1].read_bytes())) == ("data.path", {"text": "a"})
    here = lab.task("task-b", "rows") / "rows.jsonl"
    here.write_bytes(rows)
    lost = {"url": f"{receiver.url}/lost.jsonl", "worker_path": str(here), "text_field": "text"}
    assert lab.bring({"data": {"jsonl": lost}}) == {"data.jsonl.worker_path": here}
    with pytest.raises(InputError, match="404"):
        lab.bring({"data": {"path": f"{receiver.url}/lost.jsonl", "text_field": "text"}})
