"""`embedding`, `rag_index`, `rag`: embed texts, index vectors, and search them."""

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

# Output file of an embedding task.
VECTORS = "vectors.parquet"
# Output folder of an index task without a server.
INDEX = "qdrant"
_LEAVE = "remove one of them"


class VectorSpec(Block):
    """How a text is embedded."""

    normalize: bool = True
    """Normalize vectors to length 1, so that the dot product is the cosine similarity."""
    batch_size: Annotated[int, Field(ge=1, le=4096), NotBool] = 32
    """Texts per batch."""
    prefix: str = ""
    """Prefix of each text; some models expect `query: ` and `passage: `."""
    pooling: Literal["auto", "mean", "cls", "last"] = "auto"
    """Pooling of the token vectors: their mean, the first or the last one; `auto` uses the model's own setting, else
    the mean."""
    max_length: PositiveInt | None = None
    """Maximum number of tokens per text; longer texts are truncated. Default: the model's limit."""


class EmbeddingSpec(VectorSpec):
    """`spec.embedding` of an `embedding` task."""

    inline: bool | None = None
    """Include the vectors in the result; default: on for at most 16 items."""


class EmbeddingModelSpec(VectorSpec):
    """`spec.embedding` of a `rag` or `rag_index` task."""

    model: ModelName = "sentence-transformers/all-MiniLM-L6-v2"
    """Embedding model: Hub id, local folder, which is uploaded with the workflow, or a built-in one. Search a
    collection with the model that it was indexed with."""
    revision: Revision | None = None
    """Branch, tag or commit on the Hub."""
    trust_remote_code: bool = False
    """Run the Python code that comes with the model; requires a worker started with `--allow-code`."""


class ServerSpec(Block):
    """Location of a collection."""

    url: Url | None = None
    """URL of a Qdrant server."""
    api_key: Secret | None = None
    """API key of the server, as `${secret:NAME}`."""
    task_id: Text | None = Field(default=None, alias="taskId")
    """Id of the `rag_index` task that created the database; becomes a dependency."""
    artifact: Text | None = None
    """Name, digest or id of an artifact with the database."""
    collection: FileName
    """Name of the collection."""
    timeout_s: Timeout = Field(default=60.0, alias="timeoutSec")
    """Request timeout of the server, in seconds."""

    places: ClassVar[tuple[str, ...]] = ("url", "task_id", "artifact")
    """Keys that locate the collection, one of which is set."""

    @model_validator(mode="after")
    def _one_place(self) -> ServerSpec:
        faults: Faults = []
        given = [name for name in self.places if getattr(self, name) is not None]
        spelt = {"task_id": "taskId"}
        if len(given) > 1:
            message = f"cannot be combined with {spelt.get(given[0], given[0])}"
            faults += [(spelt.get(name, name), message, _LEAVE) for name in given[1:]]
        if self.api_key is not None and self.url is None:
            faults.append(("api_key", "has no effect without url", "remove it"))
        if faults:
            raise many_wrong(faults)
        return self


class QdrantSpec(ServerSpec):
    """`spec.qdrant` of a `rag` task: the database, on a server or from an index task."""

    path: Text | None = None
    """Folder of a database on the submitting machine, which is uploaded with the workflow."""

    places: ClassVar[tuple[str, ...]] = ("url", "path", "task_id", "artifact")

    @model_validator(mode="after")
    def _some_place(self) -> QdrantSpec:
        if all(getattr(self, name) is None for name in self.places):
            raise wrong("has no location", "set url, path, taskId or artifact")
        return self


class IndexQdrantSpec(ServerSpec):
    """`spec.qdrant` of a `rag_index` task: a server; without one the database is a folder in the task's output.

    A database from `taskId` or `artifact` is extended.
    """


class SearchSpec(Block):
    """`spec.search`: search options."""

    top_k: Annotated[int, Field(ge=1, le=10_000), NotBool] = 5
    """Number of hits per query."""
    score_threshold: Annotated[float, NotBool] | None = None
    """Minimum score of a hit."""
    filter: FreeMapping | None = None
    """Filter in Qdrant's syntax, such as `{must: [{key: metadata.year, match: {value: 2026}}]}`."""


class ChunkingSpec(Block):
    """`spec.chunking`: how long texts are split into chunks."""

    size: PositiveInt = 256
    """Maximum size of a chunk."""
    overlap: NaturalInt = 32
    """Overlap of consecutive chunks."""
    by: Literal["tokens", "characters"] = "tokens"
    """Unit of `size` and `overlap`: tokens of the model, or characters."""

    @model_validator(mode="after")
    def _gets_on(self) -> ChunkingSpec:
        # Each chunk must advance, otherwise chunking would not terminate.
        if self.overlap >= self.size:
            raise wrong(f"must be less than size: {self.size}", "an eighth of size is usual", at="overlap")
        return self


class EmbeddingTaskSpec(GeneratorTaskSpec):
    """`taskType: embedding`: embeds texts as vectors."""

    task_type: Literal["embedding"] = Field(default="embedding", alias="taskType")
    """`embedding`"""
    embedding: EmbeddingSpec = Field(default_factory=EmbeddingSpec)
    """Embedding options."""
    generates: ClassVar[bool] = False

    @property
    def environments(self) -> tuple[str, ...]:
        """Empty: embeddings are computed without vLLM."""
        return ()

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the outputs of the task."""
        del blocks  # independent of them
        return (*ALWAYS_LEFT, VECTORS)

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        model = blocks.get("model")
        vllm = model.vllm if model is not None else None
        if vllm is not None and (vllm.model_fields_set - {"convert"} or vllm.convert not in {"auto", "embed"}):
            found.append(("model.vllm", "has no effect: embeddings are computed without vLLM", "remove it"))
        if model is not None and model.adapters:
            found.append(
                (
                    "model.adapters",
                    "is not supported for embeddings",
                    "merge them into the model with a `merge` task first",
                )
            )
        return found


class RetrievalTaskSpec(BaseTaskSpec):
    """Keys of task types that use a vector collection."""

    embedding: EmbeddingModelSpec = Field(default_factory=EmbeddingModelSpec)
    """Embedding model and options."""

    @property
    def requires_code(self) -> bool:
        """Whether custom code of the model is run."""
        return self.embedding.trust_remote_code

    @property
    def model_identifier(self) -> str | None:
        """The embedding model."""
        return self.embedding.model


class RagTaskSpec(RetrievalTaskSpec):
    """`taskType: rag`: searches a vector database."""

    task_type: Literal["rag"] = Field(default="rag", alias="taskType")
    """`rag`"""
    qdrant: QdrantSpec
    """The vector database."""
    search: SearchSpec = Field(default_factory=SearchSpec)
    """Search options."""
    data: PromptData | None = None
    """The queries; alternative to `query`."""
    query: Annotated[str, Field(min_length=1)] | None = None
    """A single query; alternative to `data`."""

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        return [*super().faults(blocks), *_one_of_data_and_query(blocks)]


class RagIndexTaskSpec(RetrievalTaskSpec):
    """`taskType: rag_index`: indexes texts in a vector database. Indexing the same text again is idempotent."""

    task_type: Literal["rag_index"] = Field(default="rag_index", alias="taskType")
    """`rag_index`"""
    qdrant: IndexQdrantSpec
    """The vector database."""
    data: PromptData
    """The texts. `source` or `id` in the metadata identifies a document; default: its content."""
    chunking: ChunkingSpec | None = None
    """Chunking of long texts; default: none."""
    mode: Literal["append", "recreate"] = "append"
    """`append`: add to an existing collection; `recreate`: empty it first."""
    distance: Literal["cosine", "dot", "euclid"] = "cosine"
    """Distance metric of a new collection."""

    @classmethod
    def leaves(cls, blocks: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the outputs of the task."""
        qdrant: IndexQdrantSpec | None = blocks.get("qdrant")
        return ALWAYS_LEFT if qdrant is not None and qdrant.url is not None else (*ALWAYS_LEFT, INDEX)


def _one_of_data_and_query(blocks: Mapping[str, Any]) -> Faults:
    # An invalid block is missing here; its own error is reported elsewhere.
    if "data" not in blocks or "query" not in blocks:
        return []
    if blocks["data"] is None and blocks["query"] is None:
        return [("data", "is required", "or write a single query as query")]
    if blocks["data"] is not None and blocks["query"] is not None:
        return [("query", "cannot be combined with data", _LEAVE)]
    return []
