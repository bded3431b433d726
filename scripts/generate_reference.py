"""Write the reference of workflow documents and their JSON Schema from the models; `--check` only compares.

A key is described once: in the string below its attribute in `tunefleet.spec`.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from tunefleet.spec import ConditionSpec, json_schema
from tunefleet.spec.documents.campaign_document import CampaignSpec
from tunefleet.spec.documents.fault_messages import walk_blocks
from tunefleet.spec.documents.refused_keys import REFUSED, REFUSED_KINDS
from tunefleet.spec.documents.stages import MAX_TASKS, GraphSpec, NodeSpec, PipelineSpec
from tunefleet.spec.documents.workflow import Document
from tunefleet.spec.expressions.placeholders import MAX_PLACEHOLDER
from tunefleet.spec.expressions.size_limits import MAX_MERGED_CHARACTERS, MAX_MERGED_VALUES, MAX_PLACEHOLDERS
from tunefleet.spec.tasks.base_task import BaseTaskSpec
from tunefleet.spec.tasks.task_types import TASK_KINDS
from tunefleet.spec.text import MAX_VALUES
from tunefleet.spec.value_preview import MAX_FAULTS

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/reference"
INTRODUCTION = """\
# Workflow files

<!-- Written by `python -m scripts.generate_reference` from src/tunefleet/spec; edit the docstrings there. -->

A workflow is one YAML (or JSON) file. `tunefleet validate FILE` checks it and reports all errors, with line and
column. Unknown keys are rejected, with the nearest known key; a key without a value counts as not set. YAML is read as
version 1.2: `on`, `off`, `yes` and `no` are strings, `5e-7` is a number, a date is a string; anchors and `<<` work,
tags do not.

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

The keys that most files need:

| Key | Example |
|---|---|
| `spec.taskType` | `sft`, `lora_sft`, `dpo`, `orpo`, `kto`, `grpo`, `ppo`, `inference`, `evaluate`, `merge`, … |
| `model.source.identifier` | `Qwen/Qwen3-0.6B`, `./my-model`, `builtin:gsm8k-llama-2m` |
| `model.source.trust_remote_code` | `false` |
| `data.path` | `./rows.jsonl`, a URL, `builtin:gsm8k` |
| `data.dataset_name`, `data.split` | `HuggingFaceH4/no_robots`, `train` |
| `data.messages_field` | `messages`: chats |
| `data.prompt_column`, `data.response_column` | `question`, `answer` |
| `data.text_field` | `text`: plain text |
| `data.max_samples` | `1000` |
| `data.eval.fraction`, `data.eval.split` | `0.05`, or `test` |
| `training.num_train_epochs`, `training.max_steps` | `3`, or `500` |
| `training.batch_size`, `training.gradient_accumulation_steps` | `4`, `8` |
| `training.learning_rate`, `training.lr_scheduler_type`, `training.warmup_steps` | `2e-4`, `cosine`, `10` |
| `training.max_seq_length`, `training.packing` | `1024`, `true` |
| `training.logging_steps`, `training.save_steps`, `training.eval_steps` | `10`, `200`, `200` |
| `training.seed`, `training.bf16`, `training.gradient_checkpointing` | `0`, `true`, `true` |
| `lora.r`, `lora.alpha`, `lora.target_modules` | `16`, `32`, `all-linear` |
| `quantization.load_in_4bit` | `true`: QLoRA |
| `resources.hardware.gpu.count`, `resources.hardware.gpu.memory` | `1`, `24Gi` |
| `output.destination` | `{type: s3, …}`, `{type: http, …}` |
| `spec.stages`, `spec.graph.nodes` | several tasks |

For completion and checks in your editor, put this line at the top of the file, with the path of
[workflow.schema.json](workflow.schema.json) (a server also serves it at `GET /api/v1/schema`):

```yaml
# yaml-language-server: $schema=workflow.schema.json
```

**Paths.** `data.path`, `data.jsonl_path`, `data.jsonl.path`, `data.eval.path`, `training.resume_from_path`,
`training.deepspeed` and `checkpoint.load.path` name files on the submitting machine; they are uploaded on
submit. `model.source.identifier`, `reward_model.identifier`, `data.dataset_name` and `data.url` are Hub ids unless they
start with `./`, `../`, `/` or `~` or exist next to the file; then they are uploaded, too. `builtin:NAME` ships with
Tunefleet. Where rows or weights can come from several sources (`path`, `taskId`, `url`), set one of them. The keys of
rows also accept a URL (`https://…`), which the worker downloads.

**GPUs.** A task gets one GPU of its worker, if the worker has one. `resources.hardware.gpu.count` sets the number;
`training.allow_multi_gpu: true` without it uses all suitable GPUs. A training run has one process per GPU, unless
`training.parallelism: device_map` spreads the layers of one process over them. The worker selects the devices of each
task.

**Memory** is a number with a unit K, M, G, T or P, with or without `i` and `B`, in any case: `32Gi`, `1.5GiB`, `512M`.
All units are binary. A number without a unit is in bytes.
"""
PIPELINES = """\
## Several tasks

`spec.stages` is a list of tasks that run one after the other; the tasks of `spec.graph.nodes` declare their
dependencies. A `spec` has at most one of the two. The other keys of `spec` are shared: each task's own `spec` is merged
into them, mapping by mapping; other values are replaced. A shared block that a task type does not support is left out
of that task, if another task's type supports it. A `data`, `output.destination` or `checkpoint.load` whose `type`
differs from the shared one inherits nothing. `tunefleet graph FILE` prints the result.
"""
LIMITS = f"""\
A file has at most {MAX_TASKS:,} tasks and {MAX_VALUES:,} values; its tasks, with the shared keys merged in,
have at most {MAX_MERGED_VALUES:,} values, {MAX_MERGED_CHARACTERS:,} characters and {MAX_PLACEHOLDERS:,} placeholders.
A placeholder has at most {MAX_PLACEHOLDER:,} characters; integers have 64 bits. The first {MAX_FAULTS} errors are
reported.
"""
REFERENCES = """\
## References

| Reference | Value |
|---|---|
| `${STAGE.result.KEY}` | a value in the result of another task of the file; `result.` is optional |
| `${STAGE.task_id}` | its id; also `worker_id`, `received_at` and `metadata.KEY` |
| `${task-ID.result.KEY}` | the same for a task that was submitted earlier |
| `${secret:NAME}` | a secret of the worker: its variable `TUNEFLEET_SECRET_NAME`; never sent to the server |
| `$${` | a literal `${` |

Any other `${` is rejected. A path consists of keys and of indexes from 0: `items.0.output` and `items[0].output` are
the same, `metrics["eval.loss"]` is a key with a dot, and `items.output` is the list of the `output` of all entries. A
task waits for the tasks that it refers to. When they complete, the reference is replaced by the value: with its own
type if it is the entire value; inside a string as text, or as JSON if it is not a string. A missing value or
null fails the task, and the error lists the available keys. Values from results are never searched for references
or secrets.

A reference can replace any value, block or list, except `taskType`, `dependsOn` and `condition`. Everything without
a reference is checked on submit, the rest once the references are resolved.

"""
KINDS = {
    "block": "mapping, see below",
    "object": "mapping",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "string": "text",
    "array": "list",
    "anything": "any value",
    "null": "nothing",
}
PIPELINE_BLOCKS: dict[str, type[BaseModel]] = {
    "`spec` of several tasks": PipelineSpec,
    "`spec.graph`": GraphSpec,
    "`spec.stages[]` and `spec.graph.nodes[]`": NodeSpec,
    "`spec.condition`": ConditionSpec,
}
FIRST_KIND = next(iter(TASK_KINDS))
REFUSALS = """\
## Refused keys

These keys exist in other systems or are planned. They are rejected so that no option is silently ignored. A key of
another task kind is also refused, and the error lists the kinds that have it.

| Keys below `spec` | Why | Instead |
|---|---|---|
"""
KINDS_REFUSED = """\
The same applies to these task kinds:

| Kinds | Why | Instead |
|---|---|---|
"""
_FEW = 5
"""Rows that a reference to another table must save."""
_EMPTY_TABLE = 3
"""Lines of a table without rows."""
_ALIAS = "Alias of "


def describe(schema: dict[str, Any]) -> str:
    """Say in a few words what a value may be."""
    if "anyOf" in schema:
        return " or ".join(describe(choice) for choice in schema["anyOf"] if choice.get("type") != "null")
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "oneOf" in schema:
        return " or ".join(dict.fromkeys(describe(choice) for choice in schema["oneOf"]))
    kind = schema.get("type", "block" if "$ref" in schema else "anything")
    if kind == "array":
        return f"list of {_plural(describe(schema['items']))}" if "items" in schema else "list"
    if isinstance(kind, list):
        return "memory" if set(kind) == {"string", "number"} else " or ".join(KINDS.get(each, each) for each in kind)
    return KINDS[kind] + _range(schema)


def _plural(described: str) -> str:
    """Return a description with its noun in the plural: "mappings, see below"."""
    return re.sub(r"^(mapping|whole number|number|list)\b", r"\1s", described)


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


def table(block: type[BaseModel], *, beside: type[BaseModel] | None = None) -> Iterator[str]:
    """Yield the lines of the table of a block's keys, without their aliases.

    Args:
        beside: Leave out what is the same in this other one.
    """
    schema = _schema(block)
    other = {} if beside is None else _keys(beside)
    yield "| Key | Value | Default | Meaning |"
    yield "|---|---|---|---|"
    for key, value in _keys(block).items():
        if key in other and _row_of(value) == _row_of(other[key]):
            continue
        required = key in schema.get("required", ()) or key == "taskType"
        words = " ".join(value.get("description", "").split())
        yield f"| `{key}` | {describe(value)} | {_default(value, required=required)} | {words} |"
    yield ""


@cache
def _schema(block: type[BaseModel]) -> dict[str, Any]:
    """Return a block's own schema, which no caller changes; one that has itself within is found next to itself."""
    schema = block.model_json_schema(by_alias=True)
    found: dict[str, Any] = schema["$defs"][block.__name__] if "$ref" in schema else schema
    return found


def _keys(block: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of each key, without aliases."""
    properties = _schema(block)["properties"]
    # The heading names the task type of a block that has one.
    return {
        key: value
        for key, value in properties.items()
        if not _alias_of(value) and (key != "taskType" or "const" not in value)
    }


def _alias_of(value: dict[str, Any]) -> str | None:
    words = " ".join(value.get("description", "").split())
    return words.removeprefix(_ALIAS).rstrip(".") if words.startswith(_ALIAS) else None


def aliases(blocks: Iterable[tuple[str, type[BaseModel]]]) -> Iterator[str]:
    """Yield the lines of the table of other spellings: blocks at one place share a row."""
    found: dict[tuple[str, str], list[str]] = {}
    for where, block in blocks:
        for key, value in _schema(block)["properties"].items():
            if (meant := _alias_of(value)) is not None:
                name = f"`{where}.{key}`" if where else f"`{key}`"
                names = found.setdefault((where, meant), [])
                names += [name] if name not in names else []
    yield "## Accepted aliases\n"
    yield "| Key | Alias of |"
    yield "|---|---|"
    yield from (f"| {', '.join(names)} | {meant} |" for (_, meant), names in found.items())
    yield ""


def _row_of(value: dict[str, Any]) -> tuple[str, str, str]:
    refers = str(value.get("$ref", ""))
    return describe(value) + refers, _default(value, required=False), value.get("description", "")


def sections() -> Iterator[str]:
    """Yield the lines of all tables: the document, then the blocks of every kind, each block once."""
    yield "## The document\n"
    yield from table(Document)
    seen: set[type[BaseModel]] = {Document}
    complete: dict[type[BaseModel], str] = {}
    spelled: list[tuple[str, type[BaseModel]]] = [("", Document)]
    places = _places()
    for kind, root in (("", Document), *TASK_KINDS.items()):
        prefix = ("spec",) if kind else ()
        if kind == FIRST_KIND:
            yield from pipelines()
            spelled += [(_place(where), block) for where, block in PIPELINE_BLOCKS.items()]
            complete[BaseTaskSpec] = "`spec` of every task"
            yield f"## {complete[BaseTaskSpec]}\n"
            yield from table(BaseTaskSpec)
        for path, block in walk_blocks(root):
            if block in seen:
                continue
            where = ".".join((*prefix, *map(str, path)))
            seen.add(block)
            spelled.append((where, block))
            heading = _heading(block, where, kind, places[where])
            yield f"## {heading}\n"
            yield f"{_about(block)}\n"
            parent = _like(block, complete)
            if parent is None:
                yield from table(block)
            else:
                yield from _differences(block, parent, complete[parent])
            if parent in {None, BaseTaskSpec}:
                complete[block] = heading
    yield from aliases(spelled)


def pipelines() -> Iterator[str]:
    """Yield the lines about several tasks in one document."""
    yield PIPELINES
    yield LIMITS
    for where, block in PIPELINE_BLOCKS.items():
        yield f"## {where}\n"
        yield f"{_about(block)}\n"
        yield from table(block)
    yield REFERENCES


def _heading(block: type[BaseModel], where: str, kind: str, others: set[type[BaseModel]]) -> str:
    """Return the place of a block, with what tells it from others there: its `type`, or the task kind."""
    said = _type_of(block)
    if said is not None and any(_type_of(each) not in {None, said} for each in others):
        return f"`{where}` with `type: {said}`"
    return f"`{where}` of `{kind}`" if len(others) > 1 or where == "spec" else f"`{where}`"


def _place(heading: str) -> str:
    """Return the first place that a heading names."""
    return heading.split("`")[1]


def _type_of(block: type[BaseModel]) -> str | None:
    field = block.model_fields.get("type")
    choices = () if field is None else get_args(field.annotation)
    return str(choices[0]) if len(choices) == 1 else None


def _places() -> dict[str, set[type[BaseModel]]]:
    """Return the blocks that stand at each place, of all kinds."""
    found: dict[str, set[type[BaseModel]]] = {}
    for kind, root in (("", Document), *TASK_KINDS.items()):
        for path, block in walk_blocks(root):
            found.setdefault(".".join((*(("spec",) if kind else ()), *map(str, path))), set()).add(block)
    return found


def _differences(block: type[BaseModel], parent: type[BaseModel], heading: str) -> Iterator[str]:
    """Yield the lines of a block with nearly the same keys as one whose table is complete."""
    link = f"[{heading}](#{re.sub(r'[^a-z0-9_ -]', '', heading.lower()).replace(' ', '-')})"
    missing = [f"`{key}`" for key in _keys(parent) if key not in _keys(block)]
    without = f", without {', '.join(missing)}" if missing else ""
    rows = list(table(block, beside=parent))
    if len(rows) == _EMPTY_TABLE:
        yield f"The keys of {link}{without}.\n"
        return
    yield f"The keys of {link}{without}; these are new or different:\n"
    yield from rows


def _like(block: type[BaseModel], complete: Iterable[type[BaseModel]]) -> type[BaseModel] | None:
    """Return the block with a complete table whose reference saves most rows, if it saves more than a few."""
    rows = {key: _row_of(value) for key, value in _keys(block).items()}

    def saved(other: type[BaseModel]) -> int:
        theirs = {key: _row_of(value) for key, value in _keys(other).items()}
        # A key that the reader must leave out of the other table costs more than a row.
        return len(dict(rows.items() & theirs.items())) - 2 * len(theirs.keys() - rows.keys())

    best = max(complete, key=saved, default=None)
    return best if best is not None and saved(best) >= _FEW else None


def _about(block: type[BaseModel]) -> str:
    """Return what the block says of itself, without its name."""
    first = " ".join((inspect.getdoc(block) or "").split("\n\n")[0].split())
    said = first.split("`: ", 1)[1] if "`: " in first and first.startswith("`") else first
    return said[:1].upper() + said[1:]


def refusals() -> str:
    """Return the rows of the table of refused keys; keys with one reason share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for path, why in REFUSED.items():
        rows.setdefault((why.reason, why.instead), []).append(f"`{path}`")
    return "".join(f"| {', '.join(keys)} | {reason} | {instead} |\n" for (reason, instead), keys in rows.items())


def refused_kinds() -> str:
    """Return the rows of the table of refused task kinds; kinds with one reason share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for kind, why in REFUSED_KINDS.items():
        rows.setdefault((why.reason, why.instead), []).append(f"`{kind}`")
    return "".join(f"| {', '.join(kinds)} | {reason} | {instead} |\n" for (reason, instead), kinds in rows.items())


@functools.cache
def workflow_page() -> str:
    """Return the text of `docs/reference/workflow.md`."""
    tables = "\n".join(sections())
    return f"{INTRODUCTION}\n{tables}\n{REFUSALS}{refusals()}\n{KINDS_REFUSED}{refused_kinds()}"


CAMPAIGNS = """\
# Campaigns

<!-- Written by `make docs` from src/tunefleet/spec/documents/campaign_document.py; edit the docstrings there. -->

Each top-level key of a campaign file is the name of a campaign. `tunefleet campaign dry-run` checks a file and reports
all errors with their lines. For a guide, see [Run a campaign](../how-to/run-a-campaign.md); for the environment
variables, see [Configuration](configuration.md). The blocks `lora`, `quantization`, `training`, `resources`,
`model.transformers` and `notify[]` are the same as in [workflow files](workflow.md).
"""


def campaign_page() -> str:
    """Return the text of `docs/reference/campaign.md`."""
    lines: list[str] = []
    for path, block in walk_blocks(CampaignSpec):
        if not block.__module__.startswith("tunefleet.spec.documents.campaign_"):
            continue
        where = ".".join(map(str, path))
        lines += [f"## {f'`{where}`' if where else 'A campaign'}\n", f"{_about(block)}\n", *table(block)]
    return CAMPAIGNS + "\n" + "\n".join(lines).rstrip() + "\n"


def pages() -> dict[Path, str]:
    """Return every generated file with the text that it should have."""
    schema = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    return {
        FOLDER / "campaign.md": campaign_page(),
        FOLDER / "workflow.md": workflow_page(),
        FOLDER / "workflow.schema.json": schema,
    }


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
