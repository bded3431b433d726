"""Named objects and links to them, in a real S3 service."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.integration.s3.gateway import ACCESS_KEY, BUCKET, SECRET_KEY, Gateway
from tunefleet.artifacts.objects import Bucket, ObjectStore
from tunefleet.artifacts.s3 import PART_BYTES
from tunefleet.errors import MachineError, NotFoundError, UnreachableError

pytestmark = [pytest.mark.proof, pytest.mark.timeout(180)]


def store(endpoint: str, **other: str) -> ObjectStore:
    given = {"name": BUCKET, "access_key": ACCESS_KEY, "secret_key": SECRET_KEY, **other}
    return ObjectStore(Bucket(endpoint=endpoint, **given))


def test_a_large_file_goes_and_comes_and_its_link_is_signed(s3_server: Gateway, tmp_path: Path) -> None:
    shelf, path = store(s3_server.endpoint), tmp_path / "large.json"
    path.write_bytes(bytes(range(256)) * (PART_BYTES // 256 + 40_000))
    sent: list[int] = []
    shelf.put(path, "a/0/large.json", "application/json", sent.append)
    assert sum(sent) == path.stat().st_size
    assert shelf.size("a/0/large.json") == path.stat().st_size
    before = shelf.version("a/0/large.json")
    expected: list[int] = []
    came: list[int] = []
    shelf.get("a/0/large.json", tmp_path / "back", expected.append, came.append)
    assert expected == [sum(came)] == [path.stat().st_size]
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    link = shelf.link("a/0/large.json", 60)
    assert httpx.get(link, trust_env=False).content == path.read_bytes()
    last = "0" if link[-1] != "0" else "1"
    assert httpx.get(link[:-1] + last, trust_env=False).status_code == 403
    path.write_bytes(b"[]")
    shelf.put(path, "a/0/large.json", "application/json")
    assert shelf.version("a/0/large.json") != before
    assert list(shelf.names("a/")) == ["a/0/large.json"]
    assert shelf.remove(["a/0/large.json", "a/0/never.json"]) == 2
    assert list(shelf.names("a/")) == []
    assert shelf.size("a/0/large.json") is None
    with pytest.raises(NotFoundError, match=r"s3://artifacts/a/0/large\.json"):
        shelf.version("a/0/large.json")
    shelf.close()


def test_what_is_wrong_is_named(s3_server: Gateway, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text("[]")
    with pytest.raises(MachineError, match="The bucket nowhere does not exist"):
        store(s3_server.endpoint, name="nowhere").put(path, "k", "application/json")
    with pytest.raises(MachineError, match="rejects the key") as refused:
        store(s3_server.endpoint, secret_key="wrong-secret-000").put(path, "k", "application/json")
    assert "wrong-secret-000" not in f"{refused.value} {refused.value.detail}"
    with pytest.raises(UnreachableError, match="does not respond"):
        store("http://127.0.0.1:9").size("k")
    with pytest.raises(MachineError, match="is invalid"):
        store("http://")
