"""The JSON Schema that editors complete and check documents with."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, create_model

from tunefleet.spec.tasks import TaskSpec
from tunefleet.spec.workflow import Document


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a workflow document.

    It describes shape, words and ranges, and of several spellings the plainest. What several keys mean together is
    checked by `parse_workflow` only.
    """
    spec = Annotated[TaskSpec, Field(discriminator="task_type")]
    whole = create_model("Workflow", __base__=Document, __doc__="A Tunefleet workflow document.", spec=(spec, ...))
    schema = whole.model_json_schema(by_alias=True, mode="validation")
    for definition in schema["$defs"].values():
        if "taskType" in definition.get("properties", {}):
            definition["required"] = sorted({*definition.get("required", ()), "taskType"})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Tunefleet workflow", **schema}
