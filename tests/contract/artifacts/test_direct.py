"""What each service does with files that workers send to it themselves, in parts."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.integration.clouds import azurite, google
from tests.integration.clouds.azurite import Azurite
from tests.integration.clouds.google import Emulator
from tests.integration.s3.gateway import BUCKET, SECRET_KEY, Gateway
from tunefleet.artifacts.azure import AzureStore, Container
from tunefleet.artifacts.direct import DirectUploads, PartLink, sizes_of
from tunefleet.artifacts.gcs import GcsBucket, GcsStore
from tunefleet.artifacts.remote import RemoteStore
from tunefleet.artifacts.s3 import Bucket, S3Store
from tunefleet.errors import ArtifactError, ConflictError, NotFoundError

pytestmark = [pytest.mark.proof, pytest.mark.timeout(180)]

PART = 5 << 20
"""The least that S3 takes."""
DATA = os.urandom(3 * PART + 1000)
DIGEST = hashlib.sha256(DATA).hexdigest()
SIZES = sizes_of(len(DATA), PART)
_numbers = itertools.count()


@pytest.fixture(params=["s3", "gcs", "azure"])
def store(request: pytest.FixtureRequest) -> Iterator[RemoteStore]:
    made: RemoteStore = request.getfixturevalue(f"in_{request.param}")
    yield made
    made.close()


@pytest.fixture
def in_s3(s3_server: Gateway, tmp_path: Path) -> RemoteStore:
    key = s3_server.environment["AWS_ACCESS_KEY_ID"]
    prefix = f"direct-{next(_numbers)}"
    bucket = Bucket(BUCKET, prefix, endpoint=s3_server.endpoint, access_key=key, secret_key=SECRET_KEY)
    return S3Store(tmp_path / "store", bucket)


@pytest.fixture
def in_gcs(gcs_server: Emulator, tmp_path: Path) -> RemoteStore:
    prefix = f"direct-{next(_numbers)}"
    bucket = GcsBucket(google.BUCKET, gcs_server.key_file, prefix=prefix, endpoint=gcs_server.endpoint)
    return GcsStore(tmp_path / "store", bucket)


@pytest.fixture
def in_azure(azure_server: Azurite, tmp_path: Path) -> RemoteStore:
    container = Container(azurite.CONTAINER, azure_server.connection, prefix=f"direct-{next(_numbers)}")
    return AzureStore(tmp_path / "store", container)


@pytest.fixture
def direct(store: RemoteStore) -> DirectUploads:
    assert store.direct is not None
    return store.direct


def send(link: PartLink, body: bytes) -> httpx.Response:
    return httpx.put(link.url, content=body, headers=dict(link.headers), timeout=60)


def piece(number: int, data: bytes = DATA) -> bytes:
    return data[(number - 1) * PART : number * PART]


def put(direct: DirectUploads, name: str, ref: str, numbers: list[int], data: bytes = DATA) -> None:
    def one(number: int) -> None:
        link = direct.link(name, ref, number, SIZES[number - 1], 60)
        send(link, piece(number, data)).raise_for_status()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(one, numbers))


@pytest.mark.parametrize("store", ["s3", "gcs", pytest.param("azure")], indirect=True)
def test_a_file_that_came_in_parts_is_kept_under_its_digest(store: RemoteStore, direct: DirectUploads) -> None:
    ref = direct.begin("up")
    assert direct.parts("up", ref, SIZES) == set()
    put(direct, "up", ref, [4, 1])
    assert direct.parts("up", ref, SIZES) == {1, 4}
    with pytest.raises(ConflictError, match="2 of 4 parts"):
        direct.finish("up", ref, SIZES, DIGEST)
    put(direct, "up", ref, [2, 3])
    assert not store.has(DIGEST), "it is kept once it was read"
    direct.finish("up", ref, SIZES, DIGEST)
    assert store.size(DIGEST) == len(DATA)
    assert hashlib.sha256(b"".join(store.pieces(DIGEST))).hexdigest() == DIGEST
    assert list(direct._arrivals.old(time.time() + 60)) == [], "nothing of it is left beside"


def test_what_has_another_digest_is_kept_nowhere(store: RemoteStore, direct: DirectUploads) -> None:
    ref = direct.begin("up")
    put(direct, "up", ref, [1, 2, 3, 4], bytes(len(DATA)))
    with pytest.raises(ArtifactError, match="does not match"):
        direct.finish("up", ref, SIZES, DIGEST)
    assert not store.has(DIGEST)
    assert store.kept_before(time.time() + 60) == {}
    assert list(direct._arrivals.old(time.time() + 60)) == []


def test_an_end_that_was_cut_after_the_parts_became_one_is_gone_on_with(
    store: RemoteStore, direct: DirectUploads
) -> None:
    ref = direct.begin("up")
    put(direct, "up", ref, [1, 2, 3, 4])
    direct._arrivals.assemble("up", ref, len(SIZES))
    assert direct.parts("up", ref, SIZES) == {1, 2, 3, 4}
    direct.finish("up", ref, SIZES, DIGEST)
    assert store.size(DIGEST) == len(DATA)


@pytest.mark.parametrize("store", ["s3", "azure"], indirect=True)  # the emulator of Google's heeds no condition
def test_an_object_that_was_changed_after_it_was_read_is_not_kept(store: RemoteStore, direct: DirectUploads) -> None:
    ref = direct.begin("up")
    put(direct, "up", ref, [1, 2, 3, 4])
    direct._arrivals.assemble("up", ref, len(SIZES))
    version, _ = direct._arrivals.version("up")
    with pytest.raises(Exception, match=r"(?i)condition|412"), direct._explained():
        direct._arrivals.copy("up", _other(version), store._key(DIGEST))
    assert not store.has(DIGEST)


def _other(version: str) -> str:
    return str(int(version) - 1) if version.isdigit() else f'"{"0" * 32}"'


def test_what_was_given_up_is_swept_but_for_what_is_known(direct: DirectUploads) -> None:
    for name in ("known", "unknown"):
        ref = direct.begin(name)
        put(direct, name, ref, [1, 2, 3, 4])
        direct._arrivals.assemble(name, ref, len(SIZES))
    assert direct.sweep(time.time() - 600, ()) == 0
    assert direct.sweep(time.time() + 600, {"known"}) == 1
    assert [name for name, _ in direct._arrivals.old(time.time() + 600)] != []
    assert {name for name, _ in direct._arrivals.old(time.time() + 600)} == {"known"}


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_a_link_of_s3_takes_one_part_of_one_length_for_a_while(s3_server: Gateway, direct: DirectUploads) -> None:
    ref = direct.begin("up")
    link = direct.link("up", ref, 1, PART, 60)
    assert send(link, piece(1)[:-1]).status_code == 403, "shorter"
    assert send(link, piece(1) + b"x").status_code == 403, "longer"
    other = PartLink(link.url.replace("partNumber=1", "partNumber=2"))
    assert send(other, piece(1)).status_code == 403
    assert send(PartLink(link.url.replace("/arriving/up", "/blobs/ab/up")), piece(1)).status_code == 403
    brief = direct.link("up", ref, 1, PART, 1)
    time.sleep(2.1)
    assert send(brief, piece(1)).status_code == 403
    assert send(link, piece(1)).status_code == 200
    direct.discard("up", ref)
    assert send(link, piece(1)).status_code == 404, "a link does not outlive its upload"
    with pytest.raises(NotFoundError):
        direct.parts("up", ref, SIZES)
