"""A Qdrant database: a server, or its embedded mode in a folder. Errors are converted to messages for the user."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import ValidationError
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from tunefleet import settings
from tunefleet.client.external.ssrf_guard import Guarded, failure
from tunefleet.errors import InputError, UnreachableError
from tunefleet.settings import TransferSettings
from tunefleet.spec.tasks.retrieval import ServerSpec
from tunefleet.validation_errors import summary
from tunefleet.workloads.common import job_secrets
from tunefleet.workloads.embedding.encoder import Vectors

DISTANCES: Final = {"cosine": models.Distance.COSINE, "dot": models.Distance.DOT, "euclid": models.Distance.EUCLID}
_QUERIES_AT_ONCE: Final = 64
_SHOWN: Final = 20
_LASTING: Final = (400, 401, 403, 404, 405, 409, 413, 422)
"""Status codes that a retry does not change."""


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection in the database."""

    name: str
    dimension: int
    using: str | None = None
    model: str | None = None


class Database:
    """An open database."""

    def __init__(self, client: QdrantClient, where: str) -> None:
        self._client = client
        self._where = where

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def collections(self) -> list[str]:
        """Return the names of all collections."""
        with self._in_our_words():
            return sorted(each.name for each in self._client.get_collections().collections)

    def find(self, name: str) -> Collection | None:
        """Return a collection; None if it does not exist.

        Raises:
            InputError: If it has several named vectors.
        """
        with self._in_our_words():
            if not self._client.collection_exists(name):
                return None
            config = self._client.get_collection(name).config
        vectors, about = config.params.vectors, getattr(config, "metadata", None) or {}
        model = about.get("embedding_model")
        if isinstance(vectors, dict):
            if len(vectors) != 1:
                raise InputError(
                    f"The collection {name} of {self._where} has {len(vectors)} named vectors "
                    f"({', '.join(sorted(vectors))}); exactly one is required."
                )
            using, only = next(iter(vectors.items()))
            return Collection(name, int(only.size), using, model)
        if vectors is None:
            raise InputError(f"The collection {name} of {self._where} has no dense vectors.")
        return Collection(name, int(vectors.size), None, model)

    def require(self, name: str) -> Collection:
        """Return a collection.

        Raises:
            InputError: If it does not exist; names the existing ones.
        """
        found = self.find(name)
        if found is None:
            names = self.collections()
            known = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
            raise InputError(
                f"{self._where} has no collection {name!r}.", hint=f"It has: {known}." if names else "It has none yet."
            )
        return found

    def create(self, name: str, dimension: int, distance: Literal["cosine", "dot", "euclid"], model: str) -> Collection:
        """Create a collection; it must not exist."""
        with self._in_our_words():
            self._client.create_collection(
                name,
                vectors_config=models.VectorParams(size=dimension, distance=DISTANCES[distance]),
                metadata={"embedding_model": model},
            )
        return Collection(name, dimension, None, model)

    def delete(self, name: str) -> None:
        """Delete a collection with its content."""
        with self._in_our_words():
            self._client.delete_collection(name)

    def put(self, into: Collection, ids: Sequence[str], vectors: Vectors, payloads: Sequence[dict[str, Any]]) -> None:
        """Write points; existing ones with the same id are replaced."""
        points = [
            models.PointStruct(id=id_, vector={into.using: row} if into.using else row, payload=payload)
            for id_, row, payload in zip(ids, vectors.tolist(), payloads, strict=True)
        ]
        with self._in_our_words():
            # wait: the points are counted as done afterwards.
            self._client.upsert(into.name, points, wait=True)

    def forget(self, name: str, beyond: Sequence[tuple[str, int]]) -> None:
        """Delete the chunks of documents beyond their new number of chunks."""
        longer: list[Any] = [
            models.Filter(
                must=[
                    models.FieldCondition(key="source", match=models.MatchValue(value=source)),
                    models.FieldCondition(key="chunk", range=models.Range(gte=count)),
                ]
            )
            for source, count in beyond
        ]
        with self._in_our_words():
            self._client.delete(name, models.FilterSelector(filter=models.Filter(should=longer)), wait=True)

    def count(self, name: str) -> int:
        """Return the number of points in a collection."""
        with self._in_our_words():
            return int(self._client.count(name, exact=True).count)

    def search(
        self, among: Collection, vectors: Vectors, *, top_k: int, threshold: float | None, only: dict[str, Any] | None
    ) -> list[list[dict[str, Any]]]:
        """Return the nearest points of each vector: `id`, `score`, `payload`, nearest first.

        Raises:
            InputError: If the filter is invalid.
        """
        condition = _filter(only)
        found: list[list[dict[str, Any]]] = []
        for begin in range(0, len(vectors), _QUERIES_AT_ONCE):
            asked = [
                models.QueryRequest(
                    query=row,
                    using=among.using,
                    limit=top_k,
                    score_threshold=threshold,
                    filter=condition,
                    with_payload=True,
                )
                for row in vectors[begin : begin + _QUERIES_AT_ONCE].tolist()
            ]
            with self._in_our_words():
                answers = self._client.query_batch_points(among.name, asked)
            found += [[_hit(point) for point in answer.points] for answer in answers]
        return found

    @contextmanager
    def _in_our_words(self) -> Iterator[None]:
        try:
            yield
        except ResponseHandlingException as error:
            meant = failure(error.source, self._where)
            if meant is None:
                raise UnreachableError(f"{self._where} did not respond like Qdrant: {error.source}.") from error
            raise meant from error
        except ResourceExhaustedResponse as error:
            raise UnreachableError(f"{self._where} is overloaded.", detail=str(error)) from error
        except UnexpectedResponse as error:
            raise self._refused(error) from error

    def _refused(self, error: UnexpectedResponse) -> InputError | UnreachableError:
        status = error.status_code or 0
        try:
            reason = str(error.structured()["status"]["error"])
        except (ValueError, KeyError, TypeError):
            reason = ""
        sentence = f"{self._where} returned {status}{f': {reason[:200]}' if reason else ''}."
        if status in (401, 403):
            return InputError(sentence, hint="Set qdrant.api_key: ${secret:NAME} to a key with this permission.")
        return InputError(sentence) if status in _LASTING else UnreachableError(sentence)


def open_server(spec: ServerSpec) -> Database:
    """Create the client for the server of a spec; no request is sent yet."""
    filled = job_secrets.filled({"url": spec.url, "api_key": spec.api_key})
    url = str(filled["url"])
    allowed = settings.load(TransferSettings, _env_file=None).url_allow
    parts = urlsplit(url)
    with warnings.catch_warnings():
        # Sending a key over plain http is the decision of its owner.
        warnings.simplefilter("ignore", UserWarning)
        client = QdrantClient(
            url=url,
            api_key=filled["api_key"],
            timeout=round(spec.timeout_s) or 1,
            check_compatibility=False,
            transport=Guarded(allowed),
        )
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return Database(client, f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else ""))


def open_folder(path: Path) -> Database:
    """Open a database in a folder, which no other process may have open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        client = QdrantClient(path=str(path))
    return Database(client, "The database")


def copy_database(source: Path, to: Path) -> None:
    """Copy the folder of a database, atomically."""
    inner = next((each for each in (source, source / "qdrant") if (each / "meta.json").is_file()), None)
    if inner is None:
        raise InputError(
            f"{source.name} is not a database of Qdrant's embedded mode: meta.json is missing.",
            hint="Use the output of a rag_index task without qdrant.url.",
        )
    part = to.with_name(f".{to.name}.partial")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(inner, part, ignore=shutil.ignore_patterns(".lock"))
    part.replace(to)


def _filter(given: dict[str, Any] | None) -> models.Filter | None:
    try:
        return None if given is None else models.Filter.model_validate(given)
    except ValidationError as error:
        raise InputError(
            f"spec.search.filter is not a valid Qdrant filter: {summary(error, most=1)}.",
            hint="Example: {must: [{key: metadata.year, match: {value: 2026}}]}.",
        ) from None


def _hit(point: Any) -> dict[str, Any]:
    return {"id": point.id, "score": float(point.score), "payload": point.payload}
