"""Files that arrive in a bucket of S3 in parts: one multipart upload each, whose end no link outlives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from tunefleet.artifacts.direct import Arrivals, PartLink
from tunefleet.artifacts.files import CHUNK_BYTES
from tunefleet.artifacts.remote import TYPE
from tunefleet.errors import NotFoundError

_GONE: Final = frozenset({"NoSuchUpload", "NoSuchKey", "404", "NotFound"})
_COPY: Final = TransferConfig(multipart_threshold=1 << 30, multipart_chunksize=256 << 20, max_concurrency=4)
"""How the service copies: no request of this protocol copies more than 5 GB."""


class S3Arrivals(Arrivals):
    """Arriving files in a bucket."""

    def __init__(self, client: Any, signer: Any, bucket: str, place: str) -> None:
        self._client, self._signer = client, signer
        self._bucket, self._place = bucket, place

    def begin(self, name: str) -> str:
        """Begin a multipart upload."""
        return str(self._client.create_multipart_upload(**self._at(name), ContentType=TYPE)["UploadId"])

    def parts(self, name: str, ref: str) -> dict[int, int] | None:
        """Return the parts that are there; null if they are one object already."""
        try:
            return {number: size for number, size, _ in self._listed(name, ref)}
        except ClientError as error:
            if _code(error) not in _GONE:
                raise
        try:
            self.version(name)
        except ClientError as error:
            if _code(error) not in _GONE:
                raise
            raise NotFoundError(f"The upload {name} is not there any more.", hint="Begin it again.") from error
        return None

    def link(self, name: str, ref: str, number: int, size_bytes: int, good_s: int) -> PartLink:
        """Return a link that takes one part of exactly this length."""
        wanted = {**self._at(name), "UploadId": ref, "PartNumber": number, "ContentLength": size_bytes}
        return PartLink(str(self._signer.generate_presigned_url("upload_part", Params=wanted, ExpiresIn=good_s)))

    def assemble(self, name: str, ref: str, count: int) -> None:
        """Complete the multipart upload."""
        parts = [{"PartNumber": number, "ETag": tag} for number, _, tag in self._listed(name, ref) if number <= count]
        self._client.complete_multipart_upload(**self._at(name), UploadId=ref, MultipartUpload={"Parts": parts})

    def version(self, name: str) -> tuple[str, int]:
        """Return ETag and length of the object."""
        found = self._client.head_object(**self._at(name))
        return str(found["ETag"]), int(found["ContentLength"])

    def read(self, name: str, version: str) -> Iterator[bytes]:
        """Yield the object's content."""
        body = self._client.get_object(**self._at(name), IfMatch=version)["Body"]
        with contextlib.closing(body):
            yield from body.iter_chunks(CHUNK_BYTES)

    def copy(self, name: str, version: str, key: str) -> None:
        """Let the service copy the object."""
        only = {"CopySourceIfMatch": version}
        self._client.copy(self._at(name), self._bucket, key, ExtraArgs=only, Config=_COPY)

    def discard(self, name: str, ref: str) -> None:
        """Abort the multipart upload, and delete what has become of it."""
        try:
            if ref:
                self._client.abort_multipart_upload(**self._at(name), UploadId=ref)
        except ClientError as error:
            if _code(error) not in _GONE:
                raise
        self._client.delete_object(**self._at(name))

    def old(self, limit: float) -> Iterator[tuple[str, str]]:
        """Yield multipart uploads, and objects that were left."""
        place = f"{self._place}/"
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=place):
            for found in page.get("Contents", ()):
                if found["LastModified"].timestamp() <= limit:
                    yield found["Key"].removeprefix(place), ""
        for page in self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=place):
            for found in page.get("Uploads", ()):
                if found["Initiated"].timestamp() <= limit:
                    yield found["Key"].removeprefix(place), found["UploadId"]

    def _listed(self, name: str, ref: str) -> Iterator[tuple[int, int, str]]:
        for page in self._client.get_paginator("list_parts").paginate(**self._at(name), UploadId=ref):
            for part in page.get("Parts", ()):
                yield int(part["PartNumber"]), int(part["Size"]), part["ETag"]

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": f"{self._place}/{name}"}


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", "unknown"))
