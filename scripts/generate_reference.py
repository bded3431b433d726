"""Write the reference of workflow documents and their JSON Schema from the models; `--check` only compares.

A key is described once: in the string below its attribute in `tunefleet.spec`.
"""

from __future__ import annotations

import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tunefleet.spec import LoraSftSpec, json_schema
from tunefleet.spec.explain import walk_blocks
from tunefleet.spec.refused import REFUSED, REFUSED_KINDS
from tunefleet.spec.tasks import TASK_KINDS
from tunefleet.spec.workflow import Document

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/reference"
INTRODUCTION = """\
# Workflow documents

<!-- Written by `python -m scripts.generate_reference` from src/tunefleet/spec; edit the docstrings there. -->

A workflow is one YAML (or JSON) document; `tunefleet validate FILE` checks it. Every fault is reported at once, with
line and column. Unknown keys are refused, with the nearest known key. A key without a value counts as not given. YAML
is read with the words of version 1.2: `on`, `off`, `yes` and `no` are texts, `5e-7` is a number, a date is a text;
anchors and `<<` work, tags do not.

```yaml
apiVersion: tunefleet/v1
metadata:
  name: my-first-adapter
spec:
  taskType: lora_sft
  model:
    source: {identifier: "builtin:gsm8k-llama-2m"}
  data:
    path: "builtin:gsm8k"
    prompt_column: question
    response_column: answer
    eval: {split: test}
```

For completion and checks while you type, put this line at the top of the document, with the path of
[workflow.schema.json](workflow.schema.json) (a server has it as `GET /api/v1/schema`, too):

```yaml
# yaml-language-server: $schema=workflow.schema.json
```

**Paths.** `data.path`, `data.jsonl_path`, `data.jsonl.path`, `data.eval.path` and `checkpoint.load.path` name files on
the machine that submits; they travel with the submit. `model.source.identifier` and `data.dataset_name` are hub ids
unless they start with `./`, `../`, `/` or `~`, or exist beside the document; then they travel, too. `builtin:NAME`
ships with Tunefleet.

**Memory** is a number with a unit K, M, G, T or P, with or without `i` and `B`, in any case: `32Gi`, `1.5GiB`, `512M`.
All units are binary. A number alone is bytes. What cannot be read is refused.
"""
KINDS = {
    "block": "mapping, see below",
    "object": "mapping",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "string": "text",
    "memory": "memory",
}
REFUSALS = """\
## Refused by name

These keys are known from documents of other systems, or will come. They are refused, so that no option is silently
without effect.

| Keys below `spec` | Why | Instead |
|---|---|---|
"""


def describe(schema: dict[str, Any]) -> str:
    """Say in a few words what a value may be."""
    if "anyOf" in schema:
        return " or ".join(describe(choice) for choice in schema["anyOf"] if choice.get("type") != "null")
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "block" if "$ref" in schema else "string")
    if kind == "array":
        return f"list of {describe(schema['items'])}"
    return KINDS["memory" if isinstance(kind, list) else kind] + _range(schema)


def _range(schema: dict[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[name]:,}" for name, sign in signs.items() if name in schema]
    return f" {', '.join(bounds)}" if bounds else ""


def _default(schema: dict[str, Any], *, required: bool) -> str:
    if required:
        return "**required**"
    value = schema.get("default")
    if value is None or value in ([], {}) or isinstance(value, dict):
        return "–"
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def table(block: type[BaseModel], *, own: bool = False) -> Iterator[str]:
    """Yield the lines of the table of a block's keys.

    Args:
        block: The block.
        own: Leave out what it has from its parent.
    """
    schema = block.model_json_schema(by_alias=True)
    names = {field.alias or name: name for name, field in block.model_fields.items()}
    yield "| Key | Value | Default | Meaning |"
    yield "|---|---|---|---|"
    for key, value in schema["properties"].items():
        if own and names[key] not in inspect.get_annotations(block):
            continue
        required = key in schema.get("required", ()) or key == "taskType"
        words = " ".join(value.get("description", "").split())
        yield f"| `{key}` | {describe(value)} | {_default(value, required=required)} | {words} |"
    yield ""


def sections() -> Iterator[str]:
    """Yield the lines of all tables: the document, then the blocks of every kind, each block once."""
    yield "## The document\n"
    yield from table(Document)
    seen: set[type[BaseModel]] = {Document}
    for kind, root in (("", Document), *TASK_KINDS.items()):
        prefix = ("spec",) if kind else ()
        for path, block in walk_blocks(root):
            if block in seen:
                continue
            parent = next((other for other in seen if issubclass(block, other) and other is not Document), None)
            where = ".".join((*prefix, *map(str, path)))
            special = kind in {"lora_sft", "echo"} and where in {"spec", "spec.data", "spec.training"}
            seen.add(block)
            yield f"## `{where}` of `{kind}`\n" if special or where == "spec" else f"## `{where}`\n"
            if parent is not None or block is LoraSftSpec:
                yield "The same keys as for `sft`, but for these:\n"
            yield from table(block, own=parent is not None or block is LoraSftSpec)


def refusals() -> str:
    """Return the rows of the table of refused keys; keys with one reason share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for path, why in REFUSED.items():
        rows.setdefault((why.reason, why.instead), []).append(f"`{path}`")
    return "".join(f"| {', '.join(keys)} | {reason} | {instead} |\n" for (reason, instead), keys in rows.items())


def workflow_page() -> str:
    """Return the text of `docs/reference/workflow.md`."""
    kinds = ", ".join(f"`{kind}`" for kind in sorted(REFUSED_KINDS))
    last = "\n".join(textwrap.wrap(f"The same holds for the task kinds {kinds}.", 118, break_on_hyphens=False))
    tables = "\n".join(sections())
    return f"{INTRODUCTION}\n{tables}\n{REFUSALS}{refusals()}\n{last}\n"


def pages() -> dict[Path, str]:
    """Return every generated file with the text that it should have."""
    schema = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    return {FOLDER / "workflow.md": workflow_page(), FOLDER / "workflow.schema.json": schema}


def main(arguments: list[str]) -> int:
    """Write the files, or with `--check` say which are stale."""
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is not current")
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(pages()[path], encoding="utf-8")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
