"""Task kinds that load a model to use it: `inference`, `embedding` (vectors), `chat` and `serve` (an endpoint)."""

from __future__ import annotations

from typing import ClassVar

from tunefleet.executors.base import JobExecutor, Output, missing
from tunefleet.schemas.control import BETWEEN_ITEMS
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.spec.tasks.retrieval import VECTORS


class InferenceExecutor(JobExecutor):
    """Runs items through a language model; the answers are in the result."""

    kind = "inference"
    program = "tunefleet.workloads.inference:main"
    merges: ClassVar[bool] = True
    engine: ClassVar[bool] = True
    supported_commands = BETWEEN_ITEMS

    def unavailable_reason(self) -> str | None:
        """Return which libraries are missing."""
        return missing("torch", "transformers", "peft", "datasets", extra="train")

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return nothing: answers are in the result, as is the path of an exported file."""
        del folder
        return []


class EmbeddingExecutor(JobExecutor):
    """Computes embedding vectors; leaves them in one file."""

    kind = "embedding"
    program = "tunefleet.workloads.embedding:main"
    supported_commands = BETWEEN_ITEMS

    def unavailable_reason(self) -> str | None:
        """Return which libraries are missing."""
        return missing("torch", "transformers", "sentence_transformers", "pyarrow", extra="rag")

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return the file with the vectors."""
        file = folder.root / VECTORS
        return [Output(name=file.name, kind="dataset", path=file)] if file.is_file() else []


class ChatExecutor(JobExecutor):
    """Keeps a model loaded and answers chat turns."""

    kind = "chat"
    program = "tunefleet.workloads.chat:main"
    engine = True
    serves_chat = True

    def unavailable_reason(self) -> str | None:
        """Return which libraries are missing."""
        return missing("torch", "transformers", "peft", "accelerate", extra="train")

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return nothing: a chat leaves no files."""
        del folder
        return []


class ServeExecutor(JobExecutor):
    """Runs an OpenAI-compatible HTTP server, to which the worker relays requests."""

    kind = "serve"
    program = "tunefleet.workloads.serve:main"
    engine = True
    serves_http = True

    def unavailable_reason(self) -> str | None:
        """Return which libraries are missing."""
        return missing("torch", "transformers", "peft", "accelerate", extra="train")

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return nothing: an endpoint leaves no files."""
        del folder
        return []
