"""What uploads leave in a real S3 store, and for how long their links are good."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from tests.integration.s3.gateway import ACCESS_KEY, BUCKET, SECRET_KEY, Gateway
from tunefleet.campaign import object_store
from tunefleet.campaign.object_store import PREFIX
from tunefleet.errors import UnreachableError
from tunefleet.settings import CampaignSettings

pytestmark = pytest.mark.proof


def context(endpoint: str, home: Path, campaign_id: str) -> Any:
    async def log(text: str) -> None:
        said.append(text)

    said: list[str] = []
    settings = CampaignSettings(
        home=home,
        s3_endpoint=endpoint,
        s3_access_key=SecretStr(ACCESS_KEY),
        s3_secret_key=SecretStr(SECRET_KEY),
        s3_bucket=BUCKET,
    )
    return SimpleNamespace(
        settings=settings,
        provider=SimpleNamespace(name="gradients", fetches_from_store=True),
        state=SimpleNamespace(campaign_id=campaign_id, number=1),
        log=log,
        said=said,
    )


def stored(s3_server: Gateway, prefix: str) -> set[str]:
    listed = s3_server.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{PREFIX}/{prefix}")
    return {entry["Key"].removeprefix(f"{PREFIX}/") for entry in listed.get("Contents", ())}


def begun(s3_server: Gateway, prefix: str) -> list[str]:
    listed = s3_server.client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{PREFIX}/{prefix}")
    return [entry["Key"] for entry in listed.get("Uploads", ())]


async def test_what_killed_uploads_have_left_is_removed_down_to_the_unseen(s3_server: Gateway, tmp_path: Path) -> None:
    client = s3_server.client
    for name in ("camp-a/0/old.json", "camp-a/1/now.json", "camp-a/1.1/again.json", "camp-ab/0/another.json"):
        client.put_object(Bucket=BUCKET, Key=f"{PREFIX}/{name}", Body=b"[]")
    # Whoever sent this was killed: no listing shows it, and every store bills it.
    half = client.create_multipart_upload(Bucket=BUCKET, Key=f"{PREFIX}/camp-a/1/big.json")
    client.upload_part(Bucket=BUCKET, Key=half["Key"], UploadId=half["UploadId"], PartNumber=1, Body=b"x" * (5 << 20))
    on_disk = tmp_path / "uploads" / "camp-a-1" / "rows"
    on_disk.mkdir(parents=True)
    at = context(s3_server.endpoint, tmp_path, "camp-a")
    assert begun(s3_server, "camp-a/") == [half["Key"]]
    async with object_store.opened(at) as shelf:
        await shelf.sweep(keep="camp-a/1")
    assert stored(s3_server, "camp-a") == {"camp-a/1/now.json", "camp-ab/0/another.json"}
    assert begun(s3_server, "camp-a/") == []
    for name in ("camp-a/1.2/anew.json", "camp-a/11/of-a-later-cycle.json"):
        client.put_object(Bucket=BUCKET, Key=f"{PREFIX}/{name}", Body=b"[]")
    await object_store.clear(at)
    assert stored(s3_server, "camp-a") == {"camp-a/11/of-a-later-cycle.json", "camp-ab/0/another.json"}
    assert not on_disk.exists()
    assert at.said == []


async def test_a_store_that_is_away_is_said_and_asked_again_only_at_the_end(
    free_port: Callable[[], int], tmp_path: Path
) -> None:
    away = context(f"http://127.0.0.1:{free_port()}", tmp_path, "camp-b")
    await object_store.clear(away)
    assert any("cannot remove files from the store yet" in text for text in away.said)
    with pytest.raises(UnreachableError):
        await object_store.clear(away, last=True)


async def test_a_link_is_good_for_as_long_as_it_says(s3_server: Gateway, tmp_path: Path) -> None:
    s3_server.client.put_object(Bucket=BUCKET, Key=f"{PREFIX}/camp-c/0/rows.json", Body=b"[]")
    at = context(s3_server.endpoint, tmp_path, "camp-c")
    store = object_store.open_store(at.settings, "The test")
    try:
        long, short = (store.link(f"{PREFIX}/camp-c/0/rows.json", seconds) for seconds in (object_store.LINK_S, 2))
    finally:
        store.close()
    deadline = time.monotonic() + 60
    while httpx.get(short, trust_env=False).status_code != 403:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert httpx.get(long, trust_env=False).status_code == 200
