"""Holds the documents that a page shows against the code that reads such documents: YAML, JSON, TOML and Python."""

from __future__ import annotations

import ast
import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from tests.documents.blocks import Block
from tunefleet.errors import SpecError
from tunefleet.spec import parse_workflow
from tunefleet.spec.documents.campaign_file import parse_campaigns
from tunefleet.spec.text import read_text

_MODEL: Final = {"source": {"identifier": "builtin:gsm8k-llama-2m"}}
_TEXTS: Final = {"type": "list", "items": ["one"]}
_ROWS: Final = {"path": "builtin:gsm8k", "prompt_column": "question", "response_column": "answer"}
_KINDS: Final[dict[str, dict[str, Any]]] = {
    "lora_sft": {"model": _MODEL, "data": _ROWS, "lora": {"r": 8}, "training": {"max_steps": 9}},
    "inference": {"model": _MODEL, "data": _TEXTS},
    "evaluate": {"model": _MODEL, "evaluations": [{"type": "loss", "data": _ROWS}]},
    "merge": {"model": {**_MODEL, "adapters": [{"path": "./a"}, {"path": "./b"}]}},
    "data": {"sources": [{"path": "builtin:gsm8k"}]},
    "command": {"command": ["python", "train.py"]},
    "rag": {"embedding": {"model": "org/name"}, "data": _TEXTS, "qdrant": {"collection": "c", "path": "./q"}},
    "python": {"code": "def main(inputs):\n    return {}\n"},
    "api": {"api": {"url": "https://example.org"}, "data": _TEXTS},
    "reward": {"model": _MODEL, "data": {"path": "builtin:gsm8k-preferences"}, "training": {"max_steps": 9}},
}
"""The least that a task of a kind needs: the ground that a part of a document is laid on."""
_DATASET: Final = {"name": "org/rows", "field_instruction": "question", "field_output": "answer"}
_LEFT_OUT: Final = re.compile(r"^\s*(?:# )?…\s*$|, …(?=\s*[}\]])", re.MULTILINE)
_STAGE: Final = re.compile(r"\$\{(?!secret:)([a-z_]+)\.")
_TOP_KEY: Final = re.compile(r"^(\w+):", re.MULTILINE)


def fault(block: Block) -> str | None:
    """Return what is wrong with a shown document, if anything."""
    checks = {"yaml": _yaml, "python": _python, "json": _json, "toml": _toml}
    check = checks.get(block.language)
    if check is None or block.note("foreign") or block.note("shown"):
        return None
    found = check(block.text)
    return f"{block.where}: {found}" if found else None


def _yaml(text: str) -> str | None:
    for part in _parts(_LEFT_OUT.sub("", text)):
        try:
            data = read_text(part).data
        except SpecError as error:
            return str(error)
        if data is None:
            continue
        faults = [found for attempt in _attempts(data) if (found := _refused(attempt)) is not None]
        if len(faults) == len(list(_attempts(data))):
            return min(faults, key=len)
    return None


_SWEEP: Final = {"trials": 4, "parameters": {"training.learning_rate": [1e-4, 1e-3]}}
_EVALUATED: Final = {"max_steps": 9, "eval_strategy": "steps", "eval_steps": 3}
"""What an objective and a pruner need of a run."""


def _parts(text: str) -> Iterator[str]:
    """Split what shows several ways to write one key."""
    keys = _TOP_KEY.findall(text)
    if len(keys) == len(set(keys)):
        yield text
        return
    yield from text.splitlines()


def _attempts(data: Any) -> Iterator[dict[str, Any]]:
    """Yield the whole documents that a part may be of."""
    if isinstance(data, list):
        named = all("name" in item for item in data)
        yield _whole({"stages": [_laid(item) for item in data]} if named else _task("evaluate", {"evaluations": data}))
    elif "apiVersion" in data:
        yield data if "taskType" not in data.get("spec", {}) else _whole(_filled(data["spec"]))
    elif "spec" in data:
        yield _whole(_filled(data["spec"]))
    elif "taskType" in data:
        yield _whole(_filled(data))
    elif data.keys() == {"sweep"}:
        document = _whole(_task("lora_sft", {"training": _EVALUATED, "data": {**_ROWS, "eval": {"fraction": 0.1}}}))
        yield {**document, "sweep": {**_SWEEP, **data["sweep"]}}
    else:
        for kind in _KINDS:
            yield _whole(_task(kind, data))
        yield data


def _laid(stage: dict[str, Any]) -> dict[str, Any]:
    spec = stage["spec"]
    return {**stage, "spec": _filled(spec)}


def _filled(spec: dict[str, Any]) -> dict[str, Any]:
    """Add what a shown spec leaves out: only whole blocks, and only where it shows none."""
    if "stages" in spec or "graph" in spec:
        return spec
    kind = spec.get("taskType", "")
    ground = _KINDS.get(kind, {"model": _MODEL, "training": {"max_steps": 9}} if "training" in spec else {})
    if "mix" in str(spec.get("steps")) or kind not in _KINDS:
        ground = {key: value for key, value in ground.items() if key in {"model", "training"}}
    return {**ground, **spec}


def _task(kind: str, part: dict[str, Any]) -> dict[str, Any]:
    return {"taskType": kind, **_KINDS[kind], **part}


def _whole(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a document of a spec, with a stage before it for each that the spec refers to and does not have."""
    told = json.dumps(spec)
    own = {stage["name"] for stage in spec.get("stages", [])}
    own |= {node["name"] for node in spec.get("graph", {}).get("nodes", [])}
    named = {*_STAGE.findall(told), *re.findall(r'"node": "(\w+)"', told)} - own
    inputs = spec.get("inputs", ()) if isinstance(spec.get("inputs"), list) else ()
    before = [{"name": name, "spec": _before(name, told)} for name in sorted(named | set(inputs))]
    if before:
        mine = spec.get("stages") or [{"name": "shown", "spec": spec}]
        spec = {"stages": [*before, *mine]}
    return {"apiVersion": "tunefleet/v1", "metadata": {"name": "shown"}, "spec": spec}


def _before(name: str, told: str) -> dict[str, Any]:
    if f"{name}.result.jsonl_export" in told:
        export = {"jsonl_export": {"path": "a.jsonl", "fields": {"a": "output"}}}
        return {**_task("inference", {}), "postprocess": export}
    evaluates = f"{name}.result.metrics" in told or f'"node": "{name}"' in told
    return _task("evaluate" if evaluates else "lora_sft", {})


def _refused(document: dict[str, Any]) -> str | None:
    """Return why neither a workflow nor a campaign can be read from a document."""
    text = json.dumps(document)  # which YAML reads, with every key a text
    try:
        if "apiVersion" in document:
            parse_workflow(text)
        else:
            base = {"model_repo": "org/model", "datasets": [_DATASET], "hours_to_complete": 1}
            shown = {name: {**base, **(block or {})} for name, block in document.items()}
            parse_campaigns(json.dumps(shown))
    except SpecError as error:
        return "; ".join(f"{fault.path}: {fault.message}" for fault in error.faults)
    except (TypeError, AttributeError):
        return "is neither a workflow nor a campaign"
    return None


def _json(text: str) -> str | None:
    try:
        json.loads(text)
    except ValueError as error:
        return str(error)
    return None


def _toml(text: str) -> str | None:
    """Read entry points, and look for the groups that our code reads."""
    try:
        groups = tomllib.loads(text)["project"]["entry-points"]
    except (ValueError, KeyError) as error:
        return repr(error)
    sources = "".join(path.read_text() for path in Path("src/tunefleet").rglob("*.py"))
    unknown = [group for group in groups if f'"{group}"' not in sources]
    return f"nothing reads the entry points {', '.join(unknown)}" if unknown else None


def _python(text: str) -> str | None:
    """Compile it, and look up what it takes from Tunefleet: names, methods of the client, and their arguments."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
    try:
        tree: ast.Module = compile(text, "<shown>", "exec", flags=flags)
    except SyntaxError as error:
        return str(error)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tunefleet"):
            missing = [name.name for name in node.names if not _has(node.module, name.name)]
            if missing:
                return f"{node.module} has no {', '.join(missing)}"
    return next(client_faults(tree), None)


def _has(module: str, name: str) -> bool:
    """Whether a module has a name, told by its text: some import the training libraries."""
    found = find_spec(module)
    if found is None or found.origin is None:
        return False
    beside = Path(found.origin).with_name(name)
    if found.submodule_search_locations and (beside.is_dir() or beside.with_suffix(".py").is_file()):
        return True
    names: set[str] = set()
    for node in ast.parse(Path(found.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
            if "__all__" in names and isinstance(node.value, ast.List):
                names |= {each.value for each in node.value.elts if isinstance(each, ast.Constant)}
    return name in names


def client_faults(tree: ast.AST) -> Iterator[str]:
    """Yield what a program calls of the client, or hands to it, that the client does not have or take."""
    from tunefleet import AsyncClient, Client, FederatedClient, control

    waits = any(isinstance(node, ast.AsyncWith) for node in ast.walk(tree))
    known: dict[str, Any] = {
        "client": (AsyncClient if waits else Client)("http://127.0.0.1:9", "none"),
        "FederatedClient": FederatedClient,
        "tunefleet": SimpleNamespace(control=control),
    }
    said: set[str] = set()
    for node in ast.walk(tree):
        target = node.func if isinstance(node, ast.Call) else node
        first, *rest = ast.unparse(target).split(".") if isinstance(target, ast.Attribute | ast.Name) else ("",)
        if first not in known or not all(part.isidentifier() for part in rest):
            continue
        called = known[first]
        missing = next((part for part in rest if (called := getattr(called, part, None)) is None), None)
        found = f"there is no {missing}" if missing else None
        if found is None and isinstance(node, ast.Call):
            takes = inspect.signature(called).parameters
            free = any(each.kind is each.VAR_KEYWORD for each in takes.values())
            unknown = [word.arg for word in node.keywords if word.arg and word.arg not in takes and not free]
            found = f"takes no {', '.join(unknown)}" if unknown else None
        if found and found not in said:
            said.add(found)
            yield f"{ast.unparse(target)}: {found}"
