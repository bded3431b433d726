"""What every artifact store does, be it a folder or a bucket of a real S3 server; and what only the bucket does."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.clouds import azurite, google
from tests.integration.clouds.azurite import Azurite
from tests.integration.clouds.google import Emulator
from tests.integration.s3.gateway import BUCKET, SECRET_KEY, Gateway
from tunefleet.artifacts import BlobStore, FolderStore, Intake, Link, SharedFolderStore
from tunefleet.artifacts import s3 as s3_module
from tunefleet.artifacts.azure import AzureStore, Container
from tunefleet.artifacts.gcs import GcsBucket, GcsStore
from tunefleet.artifacts.s3 import Bucket, S3Store
from tunefleet.errors import (
    ArtifactError,
    ConflictError,
    MachineError,
    NotFoundError,
    OffsetConflict,
    TunefleetError,
    UnreachableError,
)
from tunefleet.orchestrator.storage.blob_stores import open_blobs
from tunefleet.settings import ServerSettings, load

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

DATA = bytes(range(256)) * 400
DIGEST = hashlib.sha256(DATA).hexdigest()
_numbers = itertools.count()
Make = Callable[..., S3Store]


@pytest.fixture
def make(s3_server: Gateway, tmp_path: Path) -> Iterator[Make]:
    """Open stores in a prefix of this test's own."""
    opened: list[S3Store] = []
    prefix = f"test-{next(_numbers)}"

    def open_store(*, link_s: int = 900, **other: Any) -> S3Store:
        environment = s3_server.environment
        keys = {"access_key": environment["AWS_ACCESS_KEY_ID"], "secret_key": environment["AWS_SECRET_ACCESS_KEY"]}
        bucket = Bucket(**{"name": BUCKET, "prefix": prefix, "endpoint": s3_server.endpoint, **keys, **other})
        opened.append(S3Store(tmp_path / "store", bucket, link_s=link_s))
        return opened[-1]

    yield open_store
    for each in opened:
        each.close()


@pytest.fixture(params=["folder", "shared", "s3", "gcs", "azure"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlobStore]:
    made: BlobStore = request.getfixturevalue(f"in_{request.param}")
    yield made
    made.close()


@pytest.fixture
def in_folder(tmp_path: Path) -> BlobStore:
    return FolderStore(tmp_path / "store")


@pytest.fixture
def in_shared(tmp_path: Path) -> BlobStore:
    (tmp_path / "shared").mkdir()
    return SharedFolderStore(tmp_path / "store", tmp_path / "shared")


@pytest.fixture
def in_s3(make: Make) -> BlobStore:
    return make()


@pytest.fixture
def in_gcs(gcs_server: Emulator, tmp_path: Path) -> BlobStore:
    bucket = GcsBucket(
        google.BUCKET, gcs_server.key_file, prefix=f"test-{next(_numbers)}", endpoint=gcs_server.endpoint
    )
    return GcsStore(tmp_path / "store", bucket)


@pytest.fixture
def in_azure(azure_server: Azurite, tmp_path: Path) -> BlobStore:
    container = Container(azurite.CONTAINER, azure_server.connection, prefix=f"test-{next(_numbers)}")
    return AzureStore(tmp_path / "store", container)


@pytest.fixture
def bucket(make: Make) -> S3Store:
    return make()


def put(store: BlobStore, data: bytes = DATA) -> str:
    digest = hashlib.sha256(data).hexdigest()
    with store.append(digest, 0, len(data)) as upload:
        upload.write(data)
        assert upload.finish()
    return digest


def fetched(store: BlobStore, digest: str) -> bytes:
    source = store.source(digest, "weights.bin")
    return httpx.get(source.url).raise_for_status().content if isinstance(source, Link) else source.read_bytes()


def keys(s3_server: Gateway, store: S3Store) -> list[str]:
    found = s3_server.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{store._prefix}/")
    return [entry["Key"] for entry in found.get("Contents", ())]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_what_is_put_is_found_and_read(store: BlobStore) -> None:
    assert (store.has(DIGEST), store.find(DIGEST)) == (False, None)
    assert put(store) == DIGEST
    assert (store.has(DIGEST), store.size(DIGEST), store.partial_size(DIGEST)) == (True, len(DATA), 0)
    assert store.read(DIGEST) == fetched(store, DIGEST) == DATA
    assert list(store.uploads.iterdir()) == []
    assert put(store) == DIGEST, "a second upload of the same file does no harm"
    empty = put(store, b"")
    assert (store.size(empty), store.read(empty), fetched(store, empty)) == (0, b"", b"")


def test_a_large_file_is_read_in_pieces(store: BlobStore) -> None:
    data = DATA * 30
    with Intake(store) as intake:
        intake.write(data)
        digest = intake.finish()
    found = list(store.pieces(digest))
    assert b"".join(found) == data
    assert len(found) >= 3
    assert max(map(len, found)) <= 1 << 20
    unread = store.pieces(digest)
    assert next(unread)
    unread.close()  # type: ignore[attr-defined]
    with pytest.raises(NotFoundError):
        next(store.pieces("0" * 64))


def test_an_upload_that_breaks_goes_on_where_it_stood(store: BlobStore) -> None:
    with contextlib.suppress(ConnectionError), store.append(DIGEST, 0, len(DATA)) as upload:
        upload.write(DATA[:3000])
        assert not upload.finish()
        raise ConnectionError
    assert not store.has(DIGEST)
    assert store.partial_size(DIGEST) == 3000
    with pytest.raises(OffsetConflict) as caught:
        store.append(DIGEST, 0, len(DATA))
    assert caught.value.cursor == 3000
    with store.append(DIGEST, 3000, len(DATA)) as upload:
        with pytest.raises(ConflictError):
            store.append(DIGEST, 3000, len(DATA))
        upload.write(DATA[3000:])
        assert upload.finish()
    assert fetched(store, DIGEST) == DATA


def test_wrong_content_is_never_found(store: BlobStore) -> None:
    with store.append(DIGEST, 0, len(DATA)) as upload:
        upload.write(b"x" * len(DATA))
        with pytest.raises(ArtifactError, match="does not match"):
            upload.finish()
    assert not store.has(DIGEST)
    assert store.partial_size(DIGEST) == 0
    assert store.kept_before(float("inf")) == {}


def test_a_file_of_unknown_digest(store: BlobStore) -> None:
    with Intake(store) as incoming:
        incoming.write(DATA)
        assert incoming.finish() == DIGEST
    assert fetched(store, DIGEST) == DATA
    with Intake(store) as incoming:
        incoming.write(b"given up")
    assert list(store.kept_before(float("inf"))) == [DIGEST]
    assert list(store.uploads.iterdir()) == []


def test_what_was_deleted_is_gone_at_once_and_can_come_back(store: BlobStore) -> None:
    put(store)
    for _ in range(10):
        store.delete(DIGEST)
        assert not store.has(DIGEST)
        with pytest.raises(NotFoundError, match=DIGEST):
            store.source(DIGEST, "x")
        with pytest.raises(NotFoundError, match=DIGEST):
            store.read(DIGEST)
        put(store)
        assert fetched(store, DIGEST) == DATA, "a deletion that was on its way did not hit the new file"
    store.delete(DIGEST)
    store.delete(hashlib.sha256(b"never here").hexdigest())
    until(lambda: store.kept_before(float("inf")) == {})


def test_what_is_there_is_listed_with_its_age(store: BlobStore) -> None:
    found = {put(store, bytes([number])): 1 for number in range(5)}
    assert store.kept_before(time.time() + 3600) == found
    assert store.kept_before(time.time() - 3600) == {}


def test_given_up_uploads_are_swept(store: BlobStore) -> None:
    with store.append(DIGEST, 0, len(DATA)) as upload:
        upload.write(DATA[:10])
    assert store.sweep_partials(3600) == 0
    assert store.sweep_partials(-1) == 10
    assert store.partial_size(DIGEST) == 0


@pytest.mark.parametrize("name", ["", "../" + "a" * 61, DIGEST.upper()])
def test_a_name_that_is_no_digest_names_nothing(store: BlobStore, name: str) -> None:
    for act in (store.has, store.size, store.read, store.partial_size, store.delete):
        with pytest.raises(ArtifactError, match="not a SHA-256"):
            act(name)


def test_a_large_file_goes_in_parts(
    bucket: S3Store, s3_server: Gateway, monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    monkeypatch.setattr(s3_module, "PART_BYTES", 5 << 20)
    data = bytes(range(256)) * 4096 * 11 + b"and a bit"
    digest = put(bucket, data)
    head = s3_server.client.head_object(Bucket=BUCKET, Key=bucket._key(digest))
    assert head["ETag"].strip('"').endswith("-3"), "three parts"
    assert fetched(make(), digest) == data
    # On the disk it has changed since it was hashed: what is sent is hashed again, and nothing of it stays.
    other = hashlib.sha256(b"other").hexdigest()
    part = bucket.uploads / "changed.part"
    part.write_bytes(data)
    with pytest.raises(ArtifactError, match="changed on the server's disk"):
        bucket.keep(part, other)
    assert not bucket.has(other)
    assert "Uploads" not in s3_server.client.list_multipart_uploads(Bucket=BUCKET)


def test_a_body_that_is_not_the_signed_one_is_refused_by_the_service(bucket: S3Store) -> None:
    from botocore.exceptions import ClientError

    def damage(request: Any, **_: Any) -> None:
        request.body = b"x" * len(DATA)

    bucket._client.meta.events.register("before-send.s3.PutObject", damage)
    with pytest.raises((ClientError, MachineError), match=r"SHA256|cannot be used"):
        put(bucket)
    assert bucket.partial_size(DIGEST) == len(DATA), "Interrupted uploads are kept for another try"
    bucket._client.meta.events.unregister("before-send.s3.PutObject", damage)
    with bucket.append(DIGEST, len(DATA), len(DATA)) as upload:
        assert upload.finish()
    assert fetched(bucket, DIGEST) == DATA


def test_a_link_is_good_for_ranges_and_makes_a_browser_save(bucket: S3Store) -> None:
    put(bucket)
    link = bucket.source(DIGEST, 'mo"del\r\n.bin').url
    part = httpx.get(link, headers={"Range": "bytes=1000-1999"})
    assert (part.status_code, part.content) == (206, DATA[1000:2000])
    assert part.headers["content-type"] == "application/octet-stream"
    assert part.headers["content-disposition"] == 'attachment; filename="mo_del__.bin"'
    assert SECRET_KEY not in link


def test_a_link_that_was_tampered_with_is_refused(bucket: S3Store) -> None:
    put(bucket)
    other = put(bucket, b"of somebody else")
    url = httpx.URL(bucket.source(DIGEST, "x").url)
    signature = url.params["X-Amz-Signature"]
    forged = ("0" if signature[0] != "0" else "1") + signature[1:]
    for tampered in (
        url.copy_set_param("X-Amz-Signature", forged),
        url.copy_set_param("X-Amz-Expires", "86400"),
        url.copy_set_param("response-content-type", "text/html"),
        url.copy_with(
            raw_path=url.raw_path.replace(f"{DIGEST[:2]}/{DIGEST}".encode(), f"{other[:2]}/{other}".encode())
        ),
        url.copy_with(query=None),
    ):
        answer = httpx.get(tampered)
        assert answer.status_code == 403, tampered
        assert DATA[:100] not in answer.content
    assert httpx.put(url, content=b"other").status_code == 403, "what may be read may not be written"
    assert httpx.get(url).content == DATA


def test_a_link_expires(make: Make) -> None:
    store = make(link_s=1)
    put(store)
    link = store.source(DIGEST, "x").url
    until(lambda: httpx.get(link).status_code == 403)
    assert DATA[:100] not in httpx.get(link).content
    assert fetched(make(), DIGEST) == DATA


def test_what_a_killed_server_left_half_sent_is_swept(bucket: S3Store, s3_server: Gateway) -> None:
    client = s3_server.client
    made = client.create_multipart_upload(Bucket=BUCKET, Key=bucket._key(DIGEST))
    client.upload_part(Bucket=BUCKET, Key=bucket._key(DIGEST), UploadId=made["UploadId"], PartNumber=1, Body=b"x")
    assert not bucket.has(DIGEST)
    bucket.sweep_partials(3600)
    assert client.list_multipart_uploads(Bucket=BUCKET)["Uploads"]
    bucket.sweep_partials(-60)
    assert "Uploads" not in client.list_multipart_uploads(Bucket=BUCKET)


def test_who_may_not_list_broken_uploads_sweeps_here_and_is_told_once(
    bucket: S3Store, caplog: pytest.LogCaptureFixture
) -> None:
    from botocore.exceptions import ClientError

    def deny(**_: Any) -> None:
        answer = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
        raise ClientError(answer, "ListMultipartUploads")

    # A right that the service here cannot withhold.
    bucket._client.meta.events.register("before-call.s3.ListMultipartUploads", deny)
    for _ in range(2):
        with bucket.append(DIGEST, 0, len(DATA)) as upload:
            upload.write(DATA[:10])
        assert bucket.sweep_partials(-1) == 10
        assert bucket.partial_size(DIGEST) == 0
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 1
    assert "ListMultipartUploads" in told[0]


def test_what_is_deleted_while_it_is_looked_up_is_not_remembered(make: Make) -> None:
    put(make())
    store = make()  # remembers nothing yet

    def delete(**_: Any) -> None:
        store.delete(DIGEST)
        store._deleter.submit(lambda: None).result()

    events = store._client.meta.events
    events.register("after-call.s3.HeadObject", delete)
    store.find(DIGEST)
    events.unregister("after-call.s3.HeadObject", delete)
    assert store.kept_before(float("inf")) == {}
    assert not store.has(DIGEST)


def test_a_deletion_holds_up_no_other_file(bucket: S3Store) -> None:
    put(bucket)
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(**_: Any) -> None:
        begun.set()
        go_on.wait(60)
        ended.set()

    bucket._client.meta.events.register("before-call.s3.DeleteObject", slow)
    bucket.delete(DIGEST)
    assert begun.wait(60)
    other = put(bucket, b"another file")
    assert bucket.has(other)
    bucket.delete(other)
    assert not bucket.has(other)
    assert not ended.is_set()
    go_on.set()
    until(lambda: bucket.kept_before(float("inf")) == {})


def test_uploads_and_deletions_at_once_never_lose_a_file(bucket: S3Store) -> None:
    stop = threading.Event()

    def delete() -> None:
        while not stop.is_set():
            bucket.delete(DIGEST)
            stop.wait(0.003)

    deleter = threading.Thread(target=delete)
    deleter.start()
    try:
        for _ in range(40):
            put(bucket)
    finally:
        stop.set()
        deleter.join()
    put(bucket)
    bucket._deleter.submit(lambda: None).result()
    assert fetched(bucket, DIGEST) == DATA


def test_the_settings_name_the_bucket_and_show_no_secret(
    s3_server: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    caplog.set_level(logging.INFO)
    settings = load(ServerSettings, data=tmp_path)
    store = open_blobs(settings)
    assert isinstance(store, S3Store)
    put(store)
    assert f"fleet/blobs/{DIGEST[:2]}/{DIGEST}" in keys(s3_server, store)
    store.close()
    assert SECRET_KEY not in f"{settings!r}{store._bucket!r}{caplog.text}"

    elsewhere = load(ServerSettings, data=tmp_path / "2", artifacts="s3://no-such-bucket")
    with pytest.raises(MachineError, match=r"s3://no-such-bucket is unusable: NoSuchBucket"):
        open_blobs(elsewhere)
    wrong = load(ServerSettings, data=tmp_path / "3", s3_secret_key="wrong")
    with pytest.raises(MachineError, match=r"is unusable: SignatureDoesNotMatch") as refused:
        open_blobs(wrong)
    assert "wrong" not in str(refused.value)
    for name in ("TUNEFLEET_S3_ENDPOINT", "TUNEFLEET_S3_PUBLIC_ENDPOINT"):
        with monkeypatch.context() as patched:
            patched.setenv(name, "nonsense")
            with pytest.raises(TunefleetError, match=rf"{name}\b"):
                load(ServerSettings, data=tmp_path / "5")
    put(FolderStore(tmp_path / "4" / "artifacts"))
    with pytest.raises(MachineError, match="still contains files"):
        open_blobs(load(ServerSettings, data=tmp_path / "4"))


def test_a_service_that_is_away_is_named(make: Make, free_port: Callable[[], int]) -> None:
    with pytest.raises(UnreachableError, match=rf"s3://{BUCKET}/test-\d+ is unavailable: EndpointConnectionError"):
        make(endpoint=f"http://127.0.0.1:{free_port()}")
