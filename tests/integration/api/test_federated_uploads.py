"""What an upload may be: everything else is refused by name before it counts, or told that it does not count."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import pickle
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.integration.api.federated import Worker, arrays, create, tarred, workers
from tests.integration.api.support import Running, until
from tests.unit.federation.adapters import Q, load
from tunefleet.federation import CONFIG, TENSORS
from tunefleet.federation.layers import PREFIX
from tunefleet.orchestrator.federation.updates import uploads

A_OF_Q = f"{PREFIX}{Q}.lora_A.weight"


@pytest.fixture
def made(admin: httpx.Client) -> dict[str, Any]:
    """A federation whose rounds are closed by the test."""
    return create(admin, min_workers=50, base_model="builtin:tiny")


@pytest.fixture
def one(running: Running, made: dict[str, Any], tmp_path: Path) -> Iterator[Worker]:
    with workers(running, made, tmp_path, "1") as (one,):
        yield one


def refused(reply: httpx.Response, status: int = 422) -> dict[str, Any]:
    """Check that an upload was refused in a way that the guide's clients can read."""
    assert reply.status_code == status, reply.text
    body: dict[str, Any] = reply.json()
    assert body["message"].startswith(body["detail"].split(" ")[0])
    return body


@pytest.mark.parametrize("count", ["0", "-50", "many", "1.5", "", "1e3", "99999999999999999999", None])
def test_an_update_counts_by_a_whole_number_of_examples(one: Worker, count: str | None) -> None:
    body = refused(one.send(tarred(one.members(arrays(1))), numExamples=count), 400)
    assert "numExamples" in body["message"]


def test_more_examples_than_the_federation_believes_are_refused(
    running: Running, admin: httpx.Client, tmp_path: Path
) -> None:
    with workers(running, create(admin, max_num_examples=1000), tmp_path, "1") as (one,):
        assert "1,000" in refused(one.send(tarred(one.members(arrays(1))), numExamples=1001), 400)["message"]
        one.upload(arrays(1), numExamples=1000)


def test_the_text_may_come_behind_the_file_or_before_it(one: Worker) -> None:
    archive = tarred(one.members(arrays(1)))
    for step, order in enumerate((("file", "text"), ("text", "file"))):
        parts = {
            "file": b'--b\r\nContent-Disposition: form-data; name="adapter"; filename="x"\r\n\r\n' + archive + b"\r\n",
            "text": b'--b\r\nContent-Disposition: form-data; name="numExamples"\r\n\r\n16\r\n',
        }
        reply = one.client.post(
            f"/api/training/adapters/{one.job}/{step}/100",
            content=b"".join(parts[part] for part in order) + b"--b--\r\n",
            headers={"Content-Type": "multipart/form-data; boundary=b"},
        )
        assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    ("files", "data"),
    [({"other": ("a.tar.gz", b"x")}, {"numExamples": "1"}), ({}, {"numExamples": "1"}), (None, None)],
)
def test_a_form_without_the_adapter_is_400(one: Worker, files: Any, data: Any) -> None:
    refused(one.client.post(f"/api/training/adapters/{one.job}/1/100", files=files, data=data), 400)


class Marker:
    """Something that a pickle would run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.safetensors"])
def test_a_pickle_is_never_opened(one: Worker, tmp_path: Path, name: str) -> None:
    marker = tmp_path / "it-ran"
    files = {**one.members(arrays(1)), name: pickle.dumps(Marker(marker))}
    body = refused(one.send(tarred(files)))
    assert "pickle" in body["message"]
    assert "safe_serialization=True" in body["message"]
    assert not marker.exists()


def test_what_lacks_the_adapter_or_its_config_says_so(one: Worker) -> None:
    files = one.members(arrays(1))
    for lacking in files:
        rest = {name: data for name, data in files.items() if name != lacking} | {"notes.txt": b"x"}
        assert f"no {lacking} at its root" in refused(one.send(tarred(rest)))["message"]
    for junk in (b"not an archive at all", b""):
        assert "is corrupt or incomplete" in refused(one.send(junk))["message"]


def test_each_refusal_names_the_tensor_and_the_reason(one: Worker) -> None:
    good = arrays(1)
    one.upload(good)
    files = one.members(good)
    broken = files[TENSORS].replace(good[A_OF_Q][1, 2].tobytes(), np.float32(np.nan).tobytes())
    body = refused(one.send(tarred({**files, TENSORS: broken})))
    assert body["faults"][0]["path"] == A_OF_Q
    assert "[1, 2]" in body["message"]
    wide = {**good, A_OF_Q: np.zeros((2, 6), np.float32)}
    body = refused(one.send(tarred(one.members(wide))))
    assert (body["faults"][0]["path"], body["code"]) == (A_OF_Q, "ADAPTER_REFUSED")
    assert "6 columns" in body["message"]
    lacking = {name: value for name, value in good.items() if name != A_OF_Q}
    assert "has no matching A" in refused(one.send(tarred(one.members(lacking))))["message"]
    assert "rank (r) is 3" in refused(one.send(tarred(one.members(arrays(1, rank=3), rank=3))))["message"]
    assert "lora_alpha is 8" in refused(one.send(tarred(one.members(good, alpha=8))))["message"]
    elsewhere = one.members(good, base_model_name_or_path="someone/else")
    assert "'someone/else'" in refused(one.send(tarred(elsewhere)))["message"]
    dora = json.dumps({**json.loads(files[CONFIG]), "use_dora": True}).encode()
    assert "DoRA" in refused(one.send(tarred({**files, CONFIG: dora})))["message"]


def test_the_first_update_is_held_against_what_was_asked(running: Running, admin: httpx.Client, tmp_path: Path) -> None:
    asked = create(admin, lora={"r": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj"]})
    with workers(running, asked, tmp_path, "1") as (one,):
        assert "requires 4" in refused(one.send(tarred(one.members(arrays(1)))))["message"]
        assert one.send(tarred(one.members(arrays(1, rank=4), rank=4, alpha=8))).status_code == 200


def evil(kind: str) -> bytes:
    """An archive that attacks who unpacks it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        info = tarfile.TarInfo("adapter_config.json")
        match kind:
            case "traversal":
                info.name = "../../../outside"
            case "absolute":
                info.name = "/tmp/outside"
            case "link":
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            case "hard link":
                info.type, info.linkname = tarfile.LNKTYPE, "/etc/passwd"
            case "device":
                info.type = tarfile.CHRTYPE
            case "duplicate":
                tar.addfile(tarfile.TarInfo("adapter_config.json"))
            case "bomb":
                info.size = 200 << 20
                tar.addfile(info, io.BytesIO(bytes(info.size)))
                return out.getvalue()
        tar.addfile(info)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["traversal", "absolute", "link", "hard link", "device", "duplicate"])
def test_an_archive_that_attacks_is_refused_and_leaves_nothing(one: Worker, kind: str) -> None:
    body = refused(one.send(evil(kind)))
    assert body["code"] == "ARTIFACT_INVALID"
    until(lambda: not list((one.running.core.blobs.root / "landing").iterdir()))


def test_a_bomb_is_refused(one: Worker) -> None:
    assert "times its size" in refused(one.send(evil("bomb")), 413)["message"]


def test_an_upload_over_the_federations_limit_is_413(running: Running, admin: httpx.Client, tmp_path: Path) -> None:
    with workers(running, create(admin, max_update_bytes=10_000), tmp_path, "1") as (one,):
        noise = os.urandom(20_000)
        body = refused(one.send(tarred({**one.members(arrays(1)), "notes.txt": noise})), 413)
        assert "10,000 bytes" in body["message"]
        huge = one.client.post(
            f"/api/training/adapters/{one.job}/1/100",
            content=(bytes(1 << 20) for _ in range(3)),
            headers={"Content-Type": "multipart/form-data; boundary=b", "Content-Length": str(3 << 20)},
        )
        refused(huge, 413)


def test_a_digest_that_was_said_is_held_against_the_archive(one: Worker) -> None:
    archive = tarred(one.members(arrays(1)))
    assert one.send(archive, sha256=hashlib.sha256(archive).hexdigest()).status_code == 200
    assert "sha256" in refused(one.send(archive, sha256="0" * 64))["message"]
    refused(one.send(archive, sha256="x"), 400)
    refused(one.send(archive, loss="nan"), 400)
    refused(one.send(archive, baseVersion="newest"), 400)
    assert "the newest version of" in refused(one.send(archive, baseVersion=7))["message"]


def test_what_was_refused_is_remembered_with_its_reason(one: Worker, admin: httpx.Client, made: dict[str, Any]) -> None:
    one.upload(arrays(1))
    refused(one.send(tarred(one.members(arrays(1, rank=3), rank=3))))
    listed = admin.get(f"/federations/{made['id']}/updates", params={"state": "rejected"}).json()["items"]
    assert [(each["worker"], each["step"]) for each in listed] == [("1", 200)]
    assert "rank (r) is 3" in listed[0]["reason"]


def test_the_same_weights_again_do_not_count_and_the_answer_says_why(one: Worker) -> None:
    first = one.upload(arrays(1))
    repeated = one.send(tarred(one.members(arrays(1))), step=100).json()
    assert (repeated["adapterId"], repeated["warning"]) == (first["adapterId"], None), "the same upload, sent again"
    stale = one.upload(arrays(1))
    assert "nothing was trained" in stale["warning"]
    assert stale["shouldAggregate"] is False
    assert "does not count" in stale["message"]
    assert one.upload(arrays(2))["warning"] is None


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_the_guides_recipe_leaves_a_folder_that_does_not_count(
    running: Running, admin: httpx.Client, tmp_path: Path, dtype: str
) -> None:
    """`load_adapter(…, "aggregated")` makes `save_pretrained` write a stale root and an untrained folder."""
    made = create(admin, min_workers=2)
    with workers(running, made, tmp_path, "1", "2", "3") as (one, two, late):
        one.upload(arrays(1))
        two.upload(arrays(2))
        published = one.fetch(one.await_version(1))
        values = late.folder / "fetched"
        values.mkdir()
        (values / "adapter_model.safetensors").write_bytes(published["adapter_model.safetensors"])
        given = load(values)
        inside = {f"aggregated/{name}": data for name, data in late.members(given, dtype=dtype).items()}
        told = late.send(tarred({**late.members(arrays(3)), **inside})).json()
        assert "aggregated/" in told["warning"]
        assert 'adapter_name="default", is_trainable=True' in told["warning"]
        assert told["shouldAggregate"] is False
        listed = admin.get(f"/federations/{made['id']}/updates", params={"worker": "3"}).json()["items"]
        assert [each["state"] for each in listed] == ["discarded"]
        # With an optimizer made anew the folder holds what was trained: then it is the update.
        trained = {name: value + 1 for name, value in given.items()}
        inside = {f"aggregated/{name}": data for name, data in late.members(trained).items()}
        counted = late.send(tarred({**late.members(arrays(3)), **inside})).json()
        assert "counts in round 2" in counted["message"]
        assert "aggregated/" in counted["warning"]
        (mine,) = admin.get(f"/federations/{made['id']}/updates", params={"state": "counted"}).json()["items"]
        assert mine["sha256"] == hashlib.sha256(inside["aggregated/adapter_model.safetensors"]).hexdigest()


def test_two_first_updates_at_once_are_held_against_each_other(
    running: Running, admin: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is checked while another becomes the first is checked again, against that."""
    made = create(admin, min_workers=50)
    whole = uploads.take
    with workers(running, made, tmp_path, "1", "2") as (first, slow):

        async def overtaken(*args: Any) -> Any:
            monkeypatch.setattr(uploads, "take", whole)
            await asyncio.to_thread(first.upload, arrays(1))
            return await whole(*args)

        monkeypatch.setattr(uploads, "take", overtaken)
        assert "rank (r) is 3" in refused(slow.send(tarred(slow.members(arrays(2, rank=3), rank=3))))["message"]
    found = admin.get(f"/federations/{made['id']}/updates").json()["items"]
    assert {each["worker"]: each["state"] for each in found} == {"1": "counted", "2": "rejected"}
    again = create(admin, min_workers=50)
    with workers(running, again, tmp_path, "1", "2") as (first, slow):
        monkeypatch.setattr(uploads, "take", overtaken)
        assert slow.upload(arrays(2))["warning"] is None
    found = admin.get(f"/federations/{again['id']}/updates").json()["items"]
    assert {each["worker"]: each["state"] for each in found} == {"1": "counted", "2": "counted"}


def test_a_worker_that_is_none_of_those_who_take_part_is_refused_before_it_uploads(
    running: Running, admin: httpx.Client, tmp_path: Path
) -> None:
    made = create(admin, participants=["ada", "bob"])
    with workers(running, made, tmp_path, "eve", "ada") as (eve, ada):
        assert "eve is not a participant" in refused(eve.send(tarred(eve.members(arrays(1)))), 403)["message"]
        ada.upload(arrays(1))
    with workers(running, create(admin), tmp_path, "a b") as (strange,):
        refused(strange.send(b"x"), 400)


def test_json_is_no_adapter(one: Worker) -> None:
    reply = one.client.post(f"/api/training/adapters/{one.job}/1/100", json={"numExamples": 1})
    assert "multipart/form-data" in refused(reply, 400)["message"]
    assert json.loads(reply.text)["code"] == "INPUT_INVALID"
