"""What is wrong with a store in Google's or Azure's cloud, or in a shared folder, is named; a signature holds."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.integration.clouds import azurite, google
from tests.integration.clouds.azurite import Azurite
from tests.integration.clouds.google import Emulator
from tunefleet.artifacts import BlobStore, FolderStore, Link, NoRoomError, SharedFolderStore
from tunefleet.artifacts import azure as azure_module
from tunefleet.artifacts import gcs as gcs_module
from tunefleet.artifacts.azure import AzureStore, Container
from tunefleet.artifacts.gcs import GcsBucket, GcsStore
from tunefleet.errors import ArtifactError, MachineError, UnreachableError

pytestmark = [pytest.mark.proof, pytest.mark.timeout(180)]

DATA = bytes(range(256)) * 3000
DIGEST = hashlib.sha256(DATA).hexdigest()


def put(store: BlobStore, data: bytes = DATA) -> str:
    digest = hashlib.sha256(data).hexdigest()
    with store.append(digest, store.partial_size(digest), len(data)) as upload:
        upload.write(data[upload.offset :])
        assert upload.finish()
    return digest


def link(store: BlobStore, digest: str) -> httpx.URL:
    source = store.source(digest, 'mo"del\r\n.bin')
    assert isinstance(source, Link)
    return httpx.URL(source.url)


def test_a_link_of_azure_holds_its_signature_and_its_time(azure_server: Azurite, tmp_path: Path) -> None:
    store = AzureStore(tmp_path, Container(azurite.CONTAINER, azure_server.connection, "links"))
    url, other = link(store, put(store)), link(store, put(store, b"of somebody else"))
    part = httpx.get(url, headers={"Range": "bytes=1000-1999"}, trust_env=False)
    assert (part.status_code, part.content) == (206, DATA[1000:2000])
    assert part.headers["content-disposition"] == 'attachment; filename="mo_del__.bin"'
    assert part.headers["content-type"] == "application/octet-stream"
    forged = url.copy_set_param("se", "2099-01-01T00:00:00Z")
    for wrong in (forged, url.copy_with(path=other.path), url.copy_with(query=None)):
        assert httpx.get(wrong, trust_env=False).status_code in {401, 403, 404}, wrong
    assert httpx.put(url, content=b"x", headers={"x-ms-blob-type": "BlockBlob"}, trust_env=False).status_code == 403
    late = AzureStore(tmp_path / "2", Container(azurite.CONTAINER, azure_server.connection, "links"), link_s=-5)
    assert httpx.get(link(late, DIGEST), trust_env=False).status_code == 403
    assert azurite.KEY not in f"{url}{Container('c', azure_server.connection)!r}"
    store.close()
    late.close()


def test_a_large_file_goes_in_blocks_and_in_pieces(
    azure_server: Azurite, gcs_server: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure_module, "_BLOCK_BYTES", 4 << 20)
    monkeypatch.setattr(gcs_module, "_RESUMABLE_BYTES", 4 << 20)
    data = DATA * 14 + b"and a bit"
    in_azure = AzureStore(tmp_path / "a", Container(azurite.CONTAINER, azure_server.connection, "large"))
    in_gcs = GcsStore(
        tmp_path / "g", GcsBucket(google.BUCKET, gcs_server.key_file, "large", endpoint=gcs_server.endpoint)
    )
    for store in (in_azure, in_gcs):
        digest = put(store, data)
        assert store.read(digest) == data
        # On the disk it has changed since it was hashed: what is sent is hashed again, and nothing of it is found.
        other = hashlib.sha256(b"other").hexdigest()
        part = store.uploads / "changed.part"
        part.write_bytes(data)
        with pytest.raises(ArtifactError, match="changed on the server's disk"):
            store.keep(part, other)
        assert not store.has(other)
        store.close()


def test_a_cut_piece_is_sent_again_and_the_file_is_whole(
    gcs_server: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs_module, "_RESUMABLE_BYTES", 256 << 10)
    store = GcsStore(tmp_path, GcsBucket(google.BUCKET, gcs_server.key_file, "cut", endpoint=gcs_server.endpoint))
    session, sent = store._client._http, []
    request = session.request

    def cut(method: str, url: str, *arguments: object, **named: object) -> object:
        sent.append(method)
        if method == "PUT" and sent.count("PUT") == 3:
            raise ConnectionError("cut by the test")
        return request(method, url, *arguments, **named)

    session.request = cut
    data = DATA * 13
    assert len(data) > 8 << 20, "else it goes in one request"
    digest = put(store, data)
    session.request = request
    assert sent.count("PUT") > 30
    assert store.read(digest) == data
    store.close()


def test_what_is_wrong_is_named(
    azure_server: Azurite, gcs_server: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs_module, "_RETRY", gcs_module.DEFAULT_RETRY.with_timeout(0.5))
    container = Container(azurite.CONTAINER, azure_server.connection)
    bucket = GcsBucket(google.BUCKET, gcs_server.key_file, endpoint=gcs_server.endpoint)
    with pytest.raises(MachineError, match=r"az://nowhere is unusable: ContainerNotFound\. Create it"):
        AzureStore(tmp_path, replace(container, name="nowhere"))
    wrong = container.connection.replace(azurite.KEY, "d3Jvbmc=")
    with pytest.raises(MachineError, match=r"AuthorizationFailure\. The keys are rejected"):
        AzureStore(tmp_path, replace(container, connection=wrong))
    for none in ("nonsense", "AccountName=a;BlobEndpoint=http://127.0.0.1:9/a"):
        with pytest.raises(MachineError, match="AZURE_STORAGE_CONNECTION_STRING contains no account key"):
            AzureStore(tmp_path, replace(container, connection=none))
    with pytest.raises(UnreachableError, match="az://artifacts is unavailable"):
        AzureStore(
            tmp_path,
            replace(container, connection=container.connection.replace(azure_server.endpoint, "http://127.0.0.1:9/a")),
        )
    with pytest.raises(MachineError, match=r"gs://nowhere is unusable: NoSuchBucket\. Create it"):
        GcsStore(tmp_path, replace(bucket, name="nowhere"))
    with pytest.raises(UnreachableError, match="gs://artifacts is unavailable"):
        GcsStore(tmp_path, replace(bucket, endpoint="http://127.0.0.1:9"))
    (tmp_path / "key.json").write_text("{}")
    with pytest.raises(MachineError, match="is not a service account key"):
        GcsStore(tmp_path, replace(bucket, key_file=tmp_path / "key.json"))


def test_a_folder_of_several_servers_needs_no_lock(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    with pytest.raises(MachineError, match=r"The shared folder .*shared does not exist\. Mount or create it"):
        SharedFolderStore(tmp_path / "1", shared)
    shared.mkdir()
    servers = [SharedFolderStore(tmp_path / str(number), shared) for number in range(4)]
    ready = threading.Barrier(len(servers))

    def send(store: SharedFolderStore) -> str:
        ready.wait(60)
        return put(store)

    with ThreadPoolExecutor(len(servers)) as pool:
        assert set(pool.map(send, servers)) == {DIGEST}
    assert all(store.read(DIGEST) == DATA for store in servers)
    assert [path.name for path in shared.rglob("*") if path.is_file()] == [DIGEST], "one file, and nothing beside it"
    (shared / "arriving/left-by-a-killed-server.part").write_bytes(b"1234")
    assert servers[0].sweep_partials(3600) == 0
    assert servers[0].sweep_partials(-1) == 4
    (tmp_path / "5/blobs/00").mkdir(parents=True)
    put(FolderStore(tmp_path / "5"))
    with pytest.raises(
        MachineError, match="still contains files, but artifacts are configured to be stored in file://"
    ):
        SharedFolderStore(tmp_path / "5", shared)


def test_a_full_shared_folder_keeps_what_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    (tmp_path / "shared").mkdir()
    store = SharedFolderStore(tmp_path / "own", tmp_path / "shared")

    def full(*_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    # A quota of a network file system, which no test machine has.
    with monkeypatch.context() as patched:
        patched.setattr("tunefleet.artifacts.shared.os.fsync", full)
        part = store.uploads / "x.part"
        part.write_bytes(DATA)
        with pytest.raises(NoRoomError, match=r"shared is full\. Free some space"):
            store.keep(part, DIGEST)
    assert part.read_bytes() == DATA
    assert not list((tmp_path / "shared/arriving").iterdir())
    store.keep(part, DIGEST)
    assert store.read(DIGEST) == DATA
