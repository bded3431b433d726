"""The JSON Schema of workflow files, for completion and validation in editors."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter, create_model

from tunefleet.spec.descriptions import descriptions
from tunefleet.spec.documents.stages import GraphSpec, Names, NodeSpec, PipelineSpec
from tunefleet.spec.documents.workflow import Document
from tunefleet.spec.expressions.lookup import ConditionSpec
from tunefleet.spec.tasks.task_types import TaskSpec

_REFS: Final = "#/$defs/"
_REFERENCE: Final = {"$ref": f"{_REFS}Reference"}
_PART: Final = "PartOf"
Schema = dict[str, Any]


def json_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of a workflow file.

    It describes structure, allowed values and ranges, and only the canonical spelling of a key. Checks across keys are
    done by `parse_workflow` only.
    """
    task = Annotated[TaskSpec, Field(discriminator="task_type")]
    whole = create_model("Workflow", __base__=Document, __doc__="A Tunefleet workflow file.", spec=(task, ...))
    schema = whole.model_json_schema(by_alias=True, mode="validation")
    definitions: dict[str, Schema] = schema["$defs"]
    # The definitions of task types are those with a `taskType`.
    kinds = [name for name, each in definitions.items() if "taskType" in each.get("properties", {})]
    _add_parts(definitions, kinds)
    _add_task_level(definitions, kinds)
    _add_pipelines(definitions, kinds)
    single = schema["properties"]["spec"]
    several = {"anyOf": [{"required": ["stages"]}, {"required": ["graph"]}]}
    schema["properties"]["spec"] = {
        "description": single.pop("description", "The task, or several."),
        "if": several,
        "then": {"$ref": f"{_REFS}PipelineSpec"},
        "else": single,
    }
    plain = _untitled(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Tunefleet workflow", **plain}


def _untitled(value: Any) -> Any:
    """Remove titles, which only repeat the keys."""
    if isinstance(value, list):
        return [_untitled(each) for each in value]
    if not isinstance(value, dict):
        return value
    named = {key: _untitled(each) for key, each in value.get("properties", {}).items()}
    made = {key: _untitled(each) for key, each in value.items() if key not in {"title", "properties"}}
    return made | ({"properties": named} if "properties" in value else {})


def _add_task_level(definitions: dict[str, Schema], kinds: list[str]) -> None:
    """Add `dependsOn` and `condition`, which are not part of the task's own model."""
    definitions["ConditionSpec"] = ConditionSpec.model_json_schema(by_alias=True)
    ids = {**TypeAdapter(Names).json_schema(), "description": descriptions(PipelineSpec)["depends_on"]}
    for name in kinds:
        each = definitions[name]
        each["required"] = sorted({*each.get("required", ()), "taskType"})
        each["properties"] |= {"dependsOn": ids, "condition": {"$ref": f"{_REFS}ConditionSpec"}}


def _add_parts(definitions: dict[str, Schema], kinds: list[str]) -> None:
    """Add a variant of each block without required keys and with references, for the specs of stages."""
    # A stage is merged with the shared keys, so none of its own keys is required.
    definitions["Reference"] = {
        "description": "`${stage.result.key}`, `${stage.task_id}` or `${secret:NAME}`.",
        "type": "string",
        "pattern": r"\$\{[^{}]+\}",
    }
    for name in [name for name in definitions if name not in {*kinds, "Metadata", "Reference"}]:
        definitions[_PART + name] = _part(definitions[name])


def _part(value: Any) -> Any:
    """Return a schema without required keys, whose values may be references."""
    if isinstance(value, list):
        return [_part(each) for each in value]
    if not isinstance(value, dict):
        return value
    made = {key: _part(each) for key, each in value.items() if key not in {"required", "properties", "$ref"}}
    if "$ref" in value:
        made["$ref"] = value["$ref"].replace(_REFS, _REFS + _PART)
    if "properties" in value:
        made["properties"] = {key: _open(each) for key, each in value["properties"].items()}
    return made


def _open(value: Schema) -> Schema:
    inner = _part(value)
    if inner.get("type") == "string" and "enum" not in inner:
        return dict(inner)
    kept = {key: inner.pop(key) for key in ("title", "description", "default") if key in inner}
    return {**kept, "anyOf": [*(inner["anyOf"] if inner.keys() == {"anyOf"} else [inner]), _REFERENCE]}


def _add_pipelines(definitions: dict[str, Schema], kinds: list[str]) -> None:
    """Add `stages` and `graph`, and the spec of a stage: any keys of any task type."""
    keys: dict[str, list[Schema]] = {}
    for name in kinds:
        for key, value in definitions[name]["properties"].items():
            task_level = key in {"dependsOn", "condition"}
            made = value if task_level else _open(value)
            if key != "taskType" and made not in keys.setdefault(key, []):
                keys[key].append(made)
    words = [definitions[name]["properties"]["taskType"]["const"] for name in kinds]
    shared: Schema = {"taskType": {"description": "Task type.", "enum": words}}
    shared |= {key: found[0] if len(found) == 1 else {"anyOf": found} for key, found in sorted(keys.items())}
    definitions["StageSpec"] = {"type": "object", "additionalProperties": False, "properties": shared}
    node = NodeSpec.model_json_schema(by_alias=True)
    node["properties"]["spec"] = {
        "description": node["properties"]["spec"].get("description"),
        "$ref": f"{_REFS}StageSpec",
    }
    definitions["NodeSpec"] = node
    graph = GraphSpec.model_json_schema(by_alias=True)
    graph.pop("$defs", None)
    definitions["GraphSpec"] = graph
    own = PipelineSpec.model_json_schema(by_alias=True)["properties"]
    definitions["PipelineSpec"] = {
        "description": PipelineSpec.__doc__,
        "type": "object",
        "additionalProperties": False,
        "properties": {**shared, "stages": own["stages"], "graph": own["graph"]},
    }
