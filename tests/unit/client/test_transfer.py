from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.unit.client.fake import URL, FakeServer, problem
from tunefleet.client import transfer
from tunefleet.client.attempt import AttemptClient
from tunefleet.client.call import Flow
from tunefleet.client.connection import Connection
from tunefleet.client.transfer import Progress
from tunefleet.client.transport import Policy, Transport
from tunefleet.errors import ArtifactError, NotFoundError, TooLargeError, UnreachableError
from tunefleet.schemas.worker_link import JournalBatch

MEGABYTE = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "model"
    (root / "sub").mkdir(parents=True)
    (root / "a.bin").write_bytes(bytes(range(256)) * 10)
    (root / "sub" / "b.txt").write_text("hello")
    (root / "empty").touch()
    return root


def test_a_folder_travels_there_and_back(folder: Path, tmp_path: Path) -> None:
    server = FakeServer()
    seen: list[Progress] = []
    pushed = server.sync().run(transfer.push(folder, kind="model", on_progress=seen.append))
    assert (pushed.name, pushed.kind, pushed.file_count, pushed.size_bytes) == ("model", "model", 3, 2565)
    assert (seen[0].phase, seen[-1].phase) == ("hashing", "uploading")
    assert seen[-1].done_bytes == seen[-1].total_bytes == 2565
    there = server.sync().run(transfer.fetch("model", tmp_path / "copy"))
    assert there == tmp_path / "copy"
    files = {path.relative_to(there).as_posix(): path.read_bytes() for path in there.rglob("*") if path.is_file()}
    assert files == {"a.bin": (folder / "a.bin").read_bytes(), "sub/b.txt": b"hello", "empty": b""}


async def test_the_asynchronous_client_moves_files_too(folder: Path, tmp_path: Path) -> None:
    server = FakeServer(break_uploads_after=[100], break_downloads_after=[100])
    transport = server.asynchronous()
    await transport.run(transfer.push(folder, name="m"))
    await transport.run(transfer.fetch("m", tmp_path / "copy"))
    assert (tmp_path / "copy" / "a.bin").read_bytes() == (folder / "a.bin").read_bytes()
    await transport.close()


def test_a_single_file_comes_back_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "x"}\n')
    server = FakeServer()
    pushed = server.sync().run(transfer.push(tmp_path / "train.jsonl", kind="dataset", metadata={"rows": 1}))
    assert pushed.metadata == {"rows": 1, "single_file": True}
    where = server.sync().run(transfer.fetch(pushed.digest, tmp_path / "in"))
    assert where == tmp_path / "in" / "train.jsonl"
    assert where.read_text() == '{"text": "x"}\n'


def test_what_the_server_has_is_not_sent_again(folder: Path) -> None:
    server = FakeServer()
    server.sync().run(transfer.push(folder))
    before = server.seen.count("POST /artifacts")
    server.requests.clear()
    server.sync().run(transfer.push(folder, name="again"))
    assert before == 1
    assert not [request for request in server.seen if request.startswith("PUT")]


def test_a_broken_upload_goes_on_where_it_stopped(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4 * 1024 * 3
    (tmp_path / "big").write_bytes(content)
    server = FakeServer(break_uploads_after=[MEGABYTE + 7, 500_000])
    server.sync().run(transfer.push(tmp_path / "big"))
    offsets = [int(r.headers["Upload-Offset"]) for r in server.requests if r.method == "PUT"]
    assert offsets == [0, MEGABYTE + 7, MEGABYTE + 500_007]
    assert list(server.blobs.values()) == [content]


def test_another_upload_of_the_same_file_is_joined(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    server = FakeServer()
    digest = "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"
    server.partials[digest] = b"0123"
    server.answers = [httpx.Response(200, json={"missing": [{"digest": digest, "offset": 0}]})]
    server.sync().run(transfer.push(tmp_path / "f"))
    assert server.blobs[digest] == b"0123456789"


def test_an_upload_that_gets_nowhere_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    (tmp_path / "f").write_bytes(b"0123456789")
    server = FakeServer(break_uploads_after=[0] * 50)
    with pytest.raises(UnreachableError):
        server.sync().run(transfer.push(tmp_path / "f"))
    assert server.seen.count("PUT " + next(p for p in server.seen if p.startswith("PUT")).split()[1]) < 12


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"0123456789")
    server = FakeServer()

    def shrink() -> Flow[None]:
        from tunefleet.artifacts import scan

        files = scan(file)
        file.write_bytes(b"0123")
        return (yield from transfer.upload("f", files))

    with pytest.raises(ArtifactError, match="was truncated"):
        server.sync().run(shrink())


def test_a_broken_download_goes_on_and_keeps_what_is_there(folder: Path, tmp_path: Path) -> None:
    server = FakeServer()
    server.sync().run(transfer.push(folder))
    server.break_downloads_after = [1000, 700]
    server.sync().run(transfer.fetch("model", tmp_path / "copy"))
    ranges = [r.headers.get("Range") for r in server.requests if r.method == "GET" and "/blobs/" in r.url.path]
    assert ranges[:3] == [None, "bytes=1000-", "bytes=1700-"]
    server.requests.clear()
    server.sync().run(transfer.fetch("model", tmp_path / "copy"))
    assert server.seen == ["GET /artifacts/model"]


def test_a_damaged_file_is_thrown_away(folder: Path, tmp_path: Path) -> None:
    server = FakeServer()
    server.sync().run(transfer.push(folder))
    digest = next(digest for digest, content in server.blobs.items() if content == b"hello")
    server.blobs[digest] = b"hullo"
    with pytest.raises(ArtifactError, match="was corrupted in transfer"):
        server.sync().run(transfer.fetch("model", tmp_path / "copy"))
    assert not list((tmp_path / "copy").rglob("*b.txt*"))


def test_a_download_that_gets_nowhere_is_given_up(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    server = FakeServer()
    server.sync().run(transfer.push(folder))
    server.break_downloads_after = [0] * 50
    with pytest.raises(UnreachableError):
        server.sync().run(transfer.fetch("model", tmp_path / "copy"))


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x"])
def test_no_file_leaves_the_folder(path: str, folder: Path, tmp_path: Path) -> None:
    server = FakeServer()
    made = server.sync().run(transfer.push(folder))
    server.artifacts[made.id]["files"][0]["path"] = path
    with pytest.raises(ArtifactError):
        server.sync().run(transfer.fetch("model", tmp_path / "copy"))
    assert not (tmp_path / "x").exists()


def test_there_must_be_something_to_push(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        FakeServer().sync().run(transfer.push(tmp_path / "none"))
    (tmp_path / "hollow").mkdir()
    with pytest.raises(ArtifactError, match="no files"):
        FakeServer().sync().run(transfer.push(tmp_path / "hollow"))


def test_an_attempt_delivers_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer()
    with AttemptClient(URL + "/api/v1/", "att-1.mac") as client:
        client._transport = server.sync(Policy(patience_s=0))
        server.answers = [httpx.Response(200, json={"cursor": 3}), httpx.Response(200, json={"cursor": 5})]
        assert client.journal("task-1", JournalBatch(launch="l1", from_seq=0, lines=("{}", "{}", "{}"))) == 3
        assert client.log("task-1", 0, b"hello") == 5
        assert server.requests[1].url.params["offset"] == "0"
        (tmp_path / "final_lora").mkdir()
        (tmp_path / "final_lora" / "w").write_bytes(b"w")
        made = client.push_artifact("task-1", "final_lora", "adapter", tmp_path / "final_lora")
        assert server.requests[-1].url.params["task_id"] == "task-1"
        assert client.fetch_artifact(made.digest, tmp_path / "in") == tmp_path / "in"
        assert (tmp_path / "in" / "w").read_bytes() == b"w"


def test_who_uploads_the_same_file_at_once_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    (tmp_path / "f").write_bytes(b"0123456789")
    server = FakeServer()
    digest = "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"
    busy = problem(409, "conflict", "The file is being uploaded by somebody else.")
    missing = httpx.Response(200, json={"missing": [{"digest": digest, "offset": 0}]})
    server.answers = [missing, busy, httpx.Response(200, json={"missing": [{"digest": digest, "offset": 6}]}), busy]
    server.blobs[digest] = b"0123456789"  # by then the other one is done
    assert server.sync().run(transfer.push(tmp_path / "f")).size_bytes == 10
    assert len([request for request in server.seen if request.startswith("PUT")]) == 2


@pytest.mark.parametrize("most", [1 << 20, 100_000])
def test_a_proxy_that_takes_no_large_bodies_gets_small_ones(most: int, tmp_path: Path) -> None:
    server, sizes = FakeServer(), []

    def before(request: httpx.Request) -> httpx.Response:
        size = int(request.headers.get("content-length", 0))
        if request.method == "PUT":
            sizes.append(size)
        if size > most:
            return httpx.Response(413, text="<html>413 Request Entity Too Large</html>", request=request)
        return server.handle_request(request)

    (tmp_path / "model.bin").write_bytes(bytes(range(256)) * 12_345)
    transport = Transport(Connection(URL, "tf_key"), Policy(patience_s=0), network=httpx.MockTransport(before))
    pushed = transport.run(transfer.push(tmp_path / "model.bin"))
    assert pushed.size_bytes == 256 * 12_345
    assert max(sizes[len([size for size in sizes if size > most]) :]) <= most
    assert sum(size for size in sizes if size <= most) == pushed.size_bytes, "nothing was sent twice"


def test_a_proxy_that_takes_next_to_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(bytes(300_000))
    server = FakeServer()

    def before(request: httpx.Request) -> httpx.Response:
        if request.method == "PUT":
            return httpx.Response(413, request=request)
        return server.handle_request(request)

    transport = Transport(Connection(URL, "tf_key"), Policy(patience_s=0), network=httpx.MockTransport(before))
    with pytest.raises(TooLargeError, match="A proxy in front of") as refused:
        transport.run(transfer.push(tmp_path / "model.bin"))
    assert "client_max_body_size" in str(refused.value.hint)
