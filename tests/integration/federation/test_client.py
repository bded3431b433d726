"""`FederatedClient` against a double of its routes over real HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.federation import FEDERATION, TOKEN, Double, serving
from tunefleet import FederatedClient
from tunefleet.client.federation import transfer
from tunefleet.errors import AuthError, GoneError, InputError, NotFoundError, UnreachableError
from tunefleet.federation import AdapterFile
from tunefleet.federation.quantize import unpack
from tunefleet.federation.safetensors_writer import write_tensors

A, B = "base_model.model.q_proj.lora_A.weight", "base_model.model.q_proj.lora_B.weight"
CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}


def arrays(seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return {A: rng.normal(size=(2, 300)).astype(np.float32), B: rng.normal(size=(200, 2)).astype(np.float32)}


@pytest.fixture
def double() -> Iterator[Double]:
    with serving() as double:
        yield double


@pytest.fixture
def client(double: Double) -> Iterator[FederatedClient]:
    with FederatedClient(double.url, FEDERATION, "lab-3", TOKEN, patience_s=1.0) as client:
        yield client


def saved(folder: Path, values: dict[str, np.ndarray[Any, Any]]) -> Path:
    folder.mkdir()
    write_tensors(folder / "adapter_model.safetensors", values)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG))
    return folder


def read(data: bytes, tmp_path: Path) -> tuple[dict[str, np.ndarray[Any, Any]], set[str]]:
    file = tmp_path / "read.safetensors"
    file.write_bytes(data)
    with AdapterFile(file) as opened:
        kinds = {tensor.dtype for tensor in opened.tensors.values()}
        return {name: opened.whole(name) for name in opened.tensors}, kinds


def test_a_folder_is_sent_as_it_is(client: FederatedClient, double: Double, tmp_path: Path) -> None:
    folder = saved(tmp_path / "adapter", arrays())
    reply = client.upload(folder, step=100, num_examples=1600, base_version=2)
    assert (reply.counted, reply.round) == (True, 1)
    (update,) = double.updates
    said = {name: update[name] for name in ("worker", "step", "num_examples", "base_version", "upload_dtype")}
    assert said == {"worker": "lab-3", "step": 100, "num_examples": 1600, "base_version": 2, "upload_dtype": "fp32"}
    assert update["config"] == CONFIG
    assert double.file_of(update) == (folder / "adapter_model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("dtype", "kind", "error"), [("fp32", "F32", 0.0), ("fp16", "F16", 2**-10), ("bf16", "BF16", 2**-8)]
)
def test_arrays_are_sent_by_name_in_the_type_that_is_asked_for(
    client: FederatedClient, double: Double, tmp_path: Path, dtype: Any, kind: str, error: float
) -> None:
    client.upload(arrays(), config=CONFIG, step=1, num_examples=8, upload_dtype=dtype)
    values, kinds = read(double.file_of(double.updates[0]), tmp_path)
    assert kinds == {kind}
    assert double.updates[0]["upload_dtype"] == dtype
    for name, sent in arrays().items():
        np.testing.assert_allclose(values[name], sent, rtol=error)


def test_what_8_bits_round_away_is_made_up_for_by_the_next_upload(
    client: FederatedClient, double: Double, tmp_path: Path
) -> None:
    for step in range(1, 9):
        client.upload(arrays(), config=CONFIG, step=step, num_examples=8, upload_dtype="int8")
    read_back = []
    for update in double.updates:
        (tmp_path / "small").write_bytes(double.file_of(update))
        unpack(tmp_path / "small", tmp_path / "plain")
        read_back.append(read((tmp_path / "plain").read_bytes(), tmp_path)[0][A])
    assert {update["upload_dtype"] for update in double.updates} == {"int8"}
    once = np.abs(read_back[0] - arrays()[A]).max()
    together = np.abs(np.mean(read_back, axis=0) - arrays()[A]).max()
    assert 0 < together < once / 4


def test_a_folder_in_half_precision_is_called_so(client: FederatedClient, double: Double, tmp_path: Path) -> None:
    folder = saved(tmp_path / "adapter", arrays())
    write_tensors(folder / "adapter_model.safetensors", arrays(), dtype="BF16")
    client.upload(folder, step=1, num_examples=8)
    assert double.updates[0]["upload_dtype"] == "bf16"


def test_an_upload_goes_on_where_it_broke(client: FederatedClient, double: Double, tmp_path: Path) -> None:
    folder = saved(tmp_path / "adapter", arrays())
    size_bytes = (folder / "adapter_model.safetensors").stat().st_size
    double.break_uploads_after = [1000, 500]
    client.upload(folder, step=1, num_examples=8)
    assert double.file_of(double.updates[0]) == (folder / "adapter_model.safetensors").read_bytes()
    assert size_bytes > 1500
    # In three parts, and no byte of it twice.
    assert double.received_bytes == size_bytes


def test_a_small_file_goes_with_its_update(client: FederatedClient, double: Double, tmp_path: Path) -> None:
    folder = saved(tmp_path / "adapter", arrays())
    assert client.upload(folder, step=1, num_examples=8).counted
    assert [asked.split("/")[-1] for asked in double.requests] == ["updates"]
    assert double.requests[0].startswith("PUT ")


def test_what_is_there_is_not_sent_again(
    client: FederatedClient, double: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "AT_ONCE_BYTES", 0)
    folder = saved(tmp_path / "adapter", arrays())
    client.upload(folder, step=1, num_examples=8)
    size_bytes = double.received_bytes
    client.upload(folder, step=2, num_examples=8)
    assert double.received_bytes == size_bytes > 0


def test_an_update_whose_answer_is_lost_counts_once(client: FederatedClient, double: Double) -> None:
    double.lose_answers = 2
    reply = client.upload(arrays(), config=CONFIG, step=1, num_examples=8)
    assert reply.counted
    assert len(double.announced) == 3
    assert len(double.updates) == 1


@pytest.mark.parametrize("questions", [1, 2, 3])
def test_an_update_that_is_still_being_checked_when_its_answer_is_lost_is_not_sent_again(
    client: FederatedClient, double: Double, tmp_path: Path, questions: int
) -> None:
    double.checking = questions
    folder = saved(tmp_path / "adapter", arrays())
    assert client.upload(folder, step=1, num_examples=8).counted
    assert double.examples == [(1, 8)]
    assert double.received_bytes == (folder / "adapter_model.safetensors").stat().st_size


def test_a_server_that_stays_away_is_given_up(client: FederatedClient, double: Double) -> None:
    double.away = True
    with pytest.raises(UnreachableError):
        client.upload(arrays(), config=CONFIG, step=1, num_examples=8)
    double.away = False
    assert client.upload(arrays(), config=CONFIG, step=1, num_examples=8).counted


def test_a_version_is_fetched_and_goes_on_where_it_broke(
    client: FederatedClient, double: Double, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "adapter", arrays(3))
    file = (folder / "adapter_model.safetensors").read_bytes()
    assert client.newest() is None
    double.publish(file, CONFIG)
    newest = client.newest(wait_s=5)
    assert newest is not None
    assert client.newest(after=1) is None
    double.break_downloads_after = [700, 900]
    place = client.download(newest, tmp_path / "inbox")
    assert place == tmp_path / "inbox" / "version-1"
    assert (place / "adapter_model.safetensors").read_bytes() == file
    assert json.loads((place / "adapter_config.json").read_text()) == CONFIG
    assert sorted(path.name for path in place.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    before = len(double.requests)
    client.download(newest, tmp_path / "inbox")
    assert not [asked for asked in double.requests[before:] if asked.endswith("/adapter")]


def test_who_waits_for_a_version_has_no_file_open_and_leaves_none(
    client: FederatedClient, double: Double, tmp_path: Path
) -> None:
    file = (saved(tmp_path / "adapter", arrays(3)) / "adapter_model.safetensors").read_bytes()
    inbox = tmp_path / "inbox"
    assert client.fetch(inbox) is None
    with ThreadPoolExecutor(1) as pool:
        asked = len(double.requests)
        waiting = pool.submit(client.fetch, inbox, wait_s=60.0)
        while len(double.requests) == asked:
            time.sleep(0.01)
        there = list(inbox.iterdir())
        double.publish(file, CONFIG)
        fetched = waiting.result(60)
    assert there == []
    assert fetched is not None
    assert (fetched.folder / "adapter_model.safetensors").read_bytes() == file
    assert list(inbox.iterdir()) == [fetched.folder]


def test_the_token_may_come_with_the_address(double: Double) -> None:
    address = double.url.replace("http://", f"http://:{TOKEN}@")
    with FederatedClient(address, FEDERATION, 7, patience_s=1.0) as client:
        assert client.join().worker == "7"
        assert client.url == double.url
        assert client.federation().id == FEDERATION
    with FederatedClient(double.url, FEDERATION, 7, "another", patience_s=1.0) as stranger, pytest.raises(AuthError):
        stranger.join()


def test_a_callback_address_is_told_and_left_as_it_was(client: FederatedClient, double: Double) -> None:
    client.join(callback_url="https://lab.example/new")
    assert double.members["lab-3"] == {"callback_url": "https://lab.example/new"}
    client.join()
    assert double.members["lab-3"].get("callback_url", "left out") == "left out"


def test_refusals_come_as_what_they_are(client: FederatedClient, double: Double) -> None:
    double.refuse_updates = (422, "adapter_refused", "The tensor lora_B is not finite.")
    with pytest.raises(InputError, match="lora_B"):
        client.upload(arrays(), config=CONFIG, step=1, num_examples=8)
    assert len(double.announced) == 1
    double.refuse_all = (410, "gone", "The federation was cancelled.")
    with pytest.raises(GoneError, match="cancelled"):
        client.upload(arrays(), config=CONFIG, step=1, num_examples=8)


def test_what_is_no_adapter_is_not_sent(client: FederatedClient, double: Double, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rank and alpha"):
        client.upload(arrays(), step=1, num_examples=8)
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(NotFoundError, match="safe_serialization=True"):
        client.upload(tmp_path, step=1, num_examples=8)
    assert double.requests == []
