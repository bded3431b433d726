"""`embedding`, `rag_index`, `rag`: texts as vectors, vectors in a database, and searching it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from tunefleet.spec.base import (
    Block,
    FileName,
    FreeMapping,
    ModelName,
    NaturalInt,
    NotBool,
    PositiveInt,
    Revision,
    Text,
    Timeout,
    Url,
    many_wrong,
    wrong,
)
from tunefleet.spec.options.environment import Secret
from tunefleet.spec.options.prompts import PromptData
from tunefleet.spec.tasks.base_task import ALWAYS_LEFT, BaseTaskSpec
from tunefleet.spec.tasks.cross_field_checks import Faults
from tunefleet.spec.tasks.item_tasks import GeneratorTaskSpec

# The file that an embedding leaves.
VECTORS = "vectors.parquet"
# The folder that an index task leaves where no server is named.
INDEX = "qdrant"
_LEAVE = "leave one of them out"


class VectorSpec(Block):
    """How a text becomes a vector."""

    normalize: bool = True
    """Give every vector the length 1, so that a product of two is their cosine."""
    batch_size: Annotated[int, Field(ge=1, le=4096), NotBool] = 32
    """Texts that go through the model at once."""
    prefix: str = ""
    """Put before each text; some models were trained with `query: ` and `passage: `."""
    pooling: Literal["auto", "mean", "cls", "last"] = "auto"
    """How the vectors of a text's tokens become one: their mean, that of the first or that of the last; `auto` as the
    model was trained, and the mean where it says nothing."""
    max_length: PositiveInt | None = None
    """Tokens after which a text is cut; by default what the model can take."""


class EmbeddingSpec(VectorSpec):
    """`spec.embedding` of an `embedding` task."""

    inline: bool | None = None
    """Put the vectors into the result, too; by default of 16 items at most."""


class EmbeddingModelSpec(VectorSpec):
    """`spec.embedding` of a `rag` or `rag_index` task."""

    model: ModelName = "sentence-transformers/all-MiniLM-L6-v2"
    """Model that makes the vectors: hub id, local folder (it travels with the submit), or a built-in one. A collection
    is searched with the model that it was made with."""
    revision: Revision | None = None
    """Branch, tag or commit of a hub id."""
    trust_remote_code: bool = False
    """Run the Python code that comes with the model; needs a worker that was started with `--allow-code`."""


class ServerSpec(Block):
    """Where a collection is."""

    url: Url | None = None
    """Address of a Qdrant server."""
    api_key: Secret | None = None
    """Its key, as `${secret:NAME}`."""
    task_id: Text | None = Field(default=None, alias="taskId")
    """Id of the `rag_index` task that left the database; it is waited for."""
    artifact: Text | None = None
    """Name, digest or id of an artifact with such a database."""
    collection: FileName
    """Name of the collection."""
    timeout_s: Timeout = Field(default=60.0, alias="timeoutSec")
    """Seconds to wait for an answer of the server."""

    places: ClassVar[tuple[str, ...]] = ("url", "task_id", "artifact")
    """Where a collection may be; one of them."""

    @model_validator(mode="after")
    def _one_place(self) -> ServerSpec:
        faults: Faults = []
        given = [name for name in self.places if getattr(self, name) is not None]
        spelt = {"task_id": "taskId"}
        if len(given) > 1:
            message = f"cannot be given together with {spelt.get(given[0], given[0])}"
            faults += [(spelt.get(name, name), message, _LEAVE) for name in given[1:]]
        if self.api_key is not None and self.url is None:
            faults.append(("api_key", "has no effect without url", "leave it out"))
        if faults:
            raise many_wrong(faults)
        return self


class QdrantSpec(ServerSpec):
    """`spec.qdrant` of a `rag` task: the database, on a server or as an index task has left it."""

    path: Text | None = None
    """Folder of such a database on the machine that submits; it travels with the submit."""

    places: ClassVar[tuple[str, ...]] = ("url", "path", "task_id", "artifact")

    @model_validator(mode="after")
    def _some_place(self) -> QdrantSpec:
        if all(getattr(self, name) is None for name in self.places):
            raise wrong("names no database", "give url, path, taskId or artifact")
        return self


class IndexQdrantSpec(ServerSpec):
    """`spec.qdrant` of a `rag_index` task: a server; without one the database is a folder that the task leaves.

    It begins with what `taskId` or `artifact` names.
    """


class SearchSpec(Block):
    """`spec.search`."""

    top_k: Annotated[int, Field(ge=1, le=10_000), NotBool] = 5
    """How many hits each query gets."""
    score_threshold: Annotated[float, NotBool] | None = None
    """Hits with a lower score are left out."""
    filter: FreeMapping | None = None
    """Which points count, as Qdrant's own filters are written, such as `{must: [{key: metadata.year, match: {value:
    2026}}]}`."""


class ChunkingSpec(Block):
    """`spec.chunking`: how long texts are cut."""

    size: PositiveInt = 256
    """Longest piece."""
    overlap: NaturalInt = 32
    """How much of a piece the next one begins with."""
    by: Literal["tokens", "characters"] = "tokens"
    """What is counted: tokens of the model, or characters."""

    @model_validator(mode="after")
    def _gets_on(self) -> ChunkingSpec:
        if self.overlap >= self.size:
            raise wrong(f"must be less than size: {self.size}", "an eighth of it is usual", at="overlap")
        return self


class EmbeddingTaskSpec(GeneratorTaskSpec):
    """`taskType: embedding`: makes a vector of each text."""

    task_type: Literal["embedding"] = Field(default="embedding", alias="taskType")
    """`embedding`"""
    embedding: EmbeddingSpec = Field(default_factory=EmbeddingSpec)
    """How."""
    generates: ClassVar[bool] = False

    @property
    def environments(self) -> tuple[str, ...]:
        """None: vectors are made without vLLM."""
        return ()

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what the task leaves."""
        del blocks  # always the same
        return (*ALWAYS_LEFT, VECTORS)

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        model = blocks.get("model")
        vllm = model.vllm if model is not None else None
        if vllm is not None and (vllm.model_fields_set - {"convert"} or vllm.convert not in {"auto", "embed"}):
            found.append(("model.vllm", "has no effect: vectors are made without vLLM", "leave it out"))
        if model is not None and model.adapters:
            found.append(("model.adapters", "are not put on here", "put them into the model with a `merge` task first"))
        return found


class RetrievalTaskSpec(BaseTaskSpec):
    """What the kinds have that work on a collection."""

    embedding: EmbeddingModelSpec = Field(default_factory=EmbeddingModelSpec)
    """What makes the vectors."""

    @property
    def requires_code(self) -> bool:
        """Whether the model's own code is run."""
        return self.embedding.trust_remote_code

    @property
    def model_identifier(self) -> str | None:
        """The model that makes vectors."""
        return self.embedding.model


class RagTaskSpec(RetrievalTaskSpec):
    """`taskType: rag`: searches a vector database."""

    task_type: Literal["rag"] = Field(default="rag", alias="taskType")
    """`rag`"""
    qdrant: QdrantSpec
    """The vector database."""
    search: SearchSpec = Field(default_factory=SearchSpec)
    """How is searched."""
    data: PromptData | None = None
    """The queries; or `query`."""
    query: Annotated[str, Field(min_length=1)] | None = None
    """A single query; or `data`."""

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        return [*super().faults(blocks), *_one_of_data_and_query(blocks)]


class RagIndexTaskSpec(RetrievalTaskSpec):
    """`taskType: rag_index`: puts texts into a vector database. What is put in twice is there once."""

    task_type: Literal["rag_index"] = Field(default="rag_index", alias="taskType")
    """`rag_index`"""
    qdrant: IndexQdrantSpec
    """The vector database."""
    data: PromptData
    """The texts. `source` or `id` in the metadata of one says which document it is; by default its own words do."""
    chunking: ChunkingSpec | None = None
    """How long texts are cut; by default not at all."""
    mode: Literal["append", "recreate"] = "append"
    """Add to a collection that is there, or empty it first."""
    distance: Literal["cosine", "dot", "euclid"] = "cosine"
    """What makes two vectors near, for a collection that is made."""

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what the task leaves."""
        qdrant: IndexQdrantSpec | None = blocks.get("qdrant")
        return ALWAYS_LEFT if qdrant is not None and qdrant.url is not None else (*ALWAYS_LEFT, INDEX)


def _one_of_data_and_query(blocks: Mapping[str, Any]) -> Faults:
    # A block that is wrong in itself is not among them; then nothing can be said.
    if "data" not in blocks or "query" not in blocks:
        return []
    if blocks["data"] is None and blocks["query"] is None:
        return [("data", "is required", "the queries; or write a single one as query")]
    if blocks["data"] is not None and blocks["query"] is not None:
        return [("query", "cannot be given together with data", _LEAVE)]
    return []
