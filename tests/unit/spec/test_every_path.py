"""Every text of every task kind: it is looked up by `spec.paths`, refuses what leads elsewhere, or is no path.

A key that is new stands in none of them, and fails here until somebody has thought about it.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from tunefleet.spec.documents.paths import _PLACES, _WORKER_PLACES
from tunefleet.spec.options.environment import runs_code
from tunefleet.spec.tasks.task_types import TASK_KINDS

LOOKED_UP = {pointer for pointer, *_ in (*_PLACES, *_WORKER_PLACES)}
CLIMBS = ("/etc/passwd", "../../elsewhere", "a/../../elsewhere")
NO_PATH = {
    # Addresses, which one function fetches, and what goes with the request.
    "url", "download_url", "base_url", "*.headers", "*.download_headers", "*.params",
    # What is looked up on the server, in its own project.
    "artifact", "taskId", "task_id", "*.upstream", "stage", "to", "node", "*.inputs",
    # Names of columns and fields, and what is put between them.
    "column", "text_field", "messages_field", "prompt_field", "response_field", "query_field", "reference_field",
    "label_field", "chosen_field", "rejected_field", "completion_field", "prompt_column", "response_column",
    "reference_column", "label_column", "chosen_column", "rejected_column", "completion_column", "separator",
    "*.metadata_columns", "*.columns", "*.keep", "*.drop", "*.rename", "*.strip", "key", "*.required_fields",
    # Texts and rows that stand in the document itself.
    "message",
    "*.items", "*.prompts", "prompt", "completion", "chosen", "rejected", "content", "role", "*.roles", "system",
    "system_prompt", "*.stop", "*.bad_words", "text", "label", "value", "template", "*.template", "expr", "*.closing",
    "*.intro", "*.candidates", "max", "min", "default", "literal", "query", "prefix", "equals", "*.in", "matches",
    "not_equals", "*.not_in", "not_matches", "*.constant", "pattern", "*.tags", "negative_label", "positive_label",
    # Where a value stands in the result of an earlier task.
    "path of items", "path of columns",
    # Names of the Hub's libraries: a part of a dataset.
    "config_name", "split",
    # Of a module of the model, a type, a place in a cluster, and names that are only shown.
    "*.target_modules", "*.modules_to_save", "quantization", "kv_cache_dtype", "name", "id", "adapter_id", "metric",
    "type", "account", "constraint", "gpu_type", "partition", "qos", "reservation", "time", "nodes", "trainer",
    "project", "tracker_project_name", "group", "*.emits", "environment",
    # Code, which needs a worker that allows it.
    "code", "entrypoint", "*.command", "*.requirements", "*.env", "*.env_vars", "function", "*.tasks",
    # A secret's name.
    "access_key", "secret_key", "api_key", "hf_token",
    # A folder of the worker, which `output` itself holds to the shared ones.
    "path of destination",
}  # fmt: skip


def texts(
    annotation: Any, path: tuple[str, ...] = (), around: Any = str, seen: tuple[type, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield where texts stand below a type, and the whole type of each; a block within itself is looked at once."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from texts(typing.get_args(annotation)[0], path, annotation, seen)
    elif annotation is str:
        yield path, around
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items() if annotation not in seen else ():
            whole = typing.Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            yield from texts(whole, (*path, field.alias or name), str, (*seen, annotation))
    elif origin in {list, tuple, set, frozenset, dict}:
        for part in typing.get_args(annotation)[1 if origin is dict else 0 :]:
            if part is not ...:
                yield from texts(part, (*path, "*"), part, seen)
    elif origin is not typing.Literal:
        for part in typing.get_args(annotation):
            yield from texts(part, path, part, seen)


def key_of(path: tuple[str, ...]) -> set[str]:
    """Return by which words a place may be declared to hold no path."""
    last, *above = [part for part in reversed(path) if part != "*"]
    return {f"*.{last}" if path[-1] == "*" else last, f"{last} of {above[0] if above else ''}"}


def test_every_text_is_looked_up_or_refuses_to_climb_or_is_no_path() -> None:
    left: set[str] = set()
    for spec in TASK_KINDS.values():
        for path, whole in texts(spec):
            pointer = ".".join(path)
            if pointer not in LOOKED_UP and not key_of(path) & NO_PATH and not refuses(whole):
                left.add(pointer)
    assert not left


def refuses(whole: Any) -> bool:
    """Whether a type takes no text that leads elsewhere."""
    check = TypeAdapter(whole)
    for text in CLIMBS:
        try:
            check.validate_python(text)
        except ValidationError:
            continue
        return False
    return True


def test_every_revision_refuses_to_climb() -> None:
    found = {
        path: whole for spec in TASK_KINDS.values() for path, whole in texts(spec) if path[-1].endswith("revision")
    }
    assert len(found) >= 7
    assert [path for path, whole in found.items() if not refuses(whole)] == []


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("VLLM_ATTENTION_BACKEND", "FLASHINFER", False),
        ("NCCL_DEBUG", "INFO", False),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", False),
        ("PYTHONPATH", "x", True),
        ("LD_LIBRARY_PATH", "x", True),
        ("HF_ENDPOINT", "https://example.org", True),
        ("HF_HOME", "x", True),
        ("VLLM_PLUGINS", "x", True),
        ("VLLM_NCCL_SO_PATH", "x", True),
        ("VLLM_LOGGING_CONFIG_PATH", "x", True),
        ("VLLM_ALLOW_INSECURE_SERIALIZATION", "1", True),
        ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1", True),
        ("VLLM_HOST_IP", "x", True),
        ("NCCL_NET_PLUGIN", "x", True),
        ("NCCL_TOPO_FILE", "x", True),
        ("VLLM_X", "/a/b", True),
        ("VLLM_XPYTHONPATHX", "x", True),
        ("VLLM", "x", True),
        ("VLLM_DP_MASTER_IP", "192.0.2.1", True),
        ("VLLM_USAGE_STATS_SERVER", "x", True),
        ("VLLM_RAY_EXTRA_ENV_VARS_TO_COPY", "x", True),
        ("NCCL_COMM_ID", "192.0.2.1:9", True),
        ("NCCL_NET", "x", True),
        ("VLLM_ATTENTION_BACKEND", "../x", True),
    ],
)
def test_what_an_engines_variables_may_do_without_the_right_to_run_code(name: str, text: str, code: bool) -> None:
    assert runs_code({name: text}) == code
    assert runs_code({"VLLM_USE_V1": "1", name: text}) == code
