"""`datasets` of a campaign: sources of rows, and their columns."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tunefleet.spec.base import ABuiltinDataset, Block, NotBool, PositiveInt, Revision, Text, is_url, many_wrong, wrong
from tunefleet.spec.options.rows import RowsPlace
from tunefleet.spec.tasks.cross_field_checks import Faults
from tunefleet.spec.tasks.data_steps import NearSpec

_S3: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/\S+")
_PLACES: Final = ("name", "path", "s3")
_HUB_ONLY: Final = ("config_name", "revision")
INSTRUCTION_FIELDS: Final = ("field_instruction", "field_input", "field_output")
CHAT_FIELDS: Final = (
    "chat_column",
    "chat_role_field",
    "chat_content_field",
    "chat_user_reference",
    "chat_assistant_reference",
)


def _object(value: str) -> str:
    if not _S3.fullmatch(value):
        raise wrong("is not a bucket object", "write s3://BUCKET/KEY")
    return value


def _open(value: str) -> str:
    if is_url(value) and "@" in urlsplit(value).netloc:
        raise wrong(
            "contains a password, which everyone who can read the campaign could see", "use a signed URL, or s3"
        )
    return value


def _absent_if_empty(value: Any) -> Any:
    return None if value == "" else value


# A column name; an empty string means no column.
Column = Annotated[Text | None, BeforeValidator(_absent_if_empty)]


class CampaignDatasetSpec(Block):
    """`datasets[]`: one source of rows. Set exactly one of `name`, `path` and `s3`."""

    name: Annotated[Text, ABuiltinDataset] | None = None
    """Hub id of a dataset."""
    path: Annotated[RowsPlace, AfterValidator(_open)] | None = None
    """File (JSONL, JSON, CSV or Parquet) next to the campaign file, URL, or `builtin:gsm8k`."""
    s3: Annotated[Text, AfterValidator(_object)] | None = None
    """Object in the campaign's S3 storage: `s3://BUCKET/KEY`."""
    config_name: Text | None = None
    """Configuration of a Hub dataset."""
    revision: Revision | None = None
    """Branch, tag or commit on the Hub."""
    split: Text = "train"
    """Split of the dataset, optionally with a slice in the syntax of `datasets`: `train[:5%]`."""
    max_rows: PositiveInt | None = None
    """Use at most this many rows, sampled with `random_seed`."""
    weight: Annotated[float, Field(gt=0), NotBool] | None = None
    """Relative weight of the source. Without weights, the sources are concatenated."""
    field_instruction: Column = None
    """Column with the instruction."""
    field_input: Column = None
    """Column with additional input for the instruction (optional)."""
    field_output: Column = None
    """Column with the output."""
    chat_column: Text = "conversations"
    """With `task_type: Chat`: column with the conversation, a list of messages."""
    chat_role_field: Text = "role"
    """With `task_type: Chat`: message field that contains the role."""
    chat_content_field: Text = "content"
    """With `task_type: Chat`: message field that contains the text."""
    chat_user_reference: Text = "user"
    """With `task_type: Chat`: name of the user's role."""
    chat_assistant_reference: Text = "assistant"
    """With `task_type: Chat`: name of the assistant's role."""

    @model_validator(mode="after")
    def _one_place(self) -> CampaignDatasetSpec:
        given = [key for key in _PLACES if getattr(self, key) is not None]
        faults: Faults = []
        if not given:
            faults.append(("", "has no data source", "set one of name, path and s3"))
        faults += [(key, f"cannot be combined with {given[0]}", "set one of them") for key in given[1:]]
        if given and given[0] != "name":
            faults += [
                (key, "is only for Hub datasets", "remove it, or set name")
                for key in _HUB_ONLY
                if getattr(self, key) is not None
            ]
        if faults:
            raise many_wrong(faults)
        return self

    @property
    def place(self) -> str:
        """The source of the rows, for messages."""
        return self.name or self.path or self.s3 or ""

    def misfits(self, *, chat: bool) -> Faults:
        """Return keys that do not match the campaign's task type.

        Args:
            chat: Whether the campaign trains on chats.
        """
        given = {key for key in self.model_fields_set if getattr(self, key) is not None}
        unused = sorted(given & set(INSTRUCTION_FIELDS if chat else CHAT_FIELDS))
        hint = "remove it, or set task_type: Chat" if not chat else "remove it, or another task_type"
        faults: Faults = [
            (key, f"has no effect {'with' if chat else 'without'} task_type: Chat", hint) for key in unused
        ]
        if not chat:
            faults += [
                (key, "is required", f"set it to the column with the {key.removeprefix('field_')}")
                for key in ("field_instruction", "field_output")
                if getattr(self, key) is None
            ]
        return faults


class CampaignDedupeSpec(NearSpec):
    """`dedupe`: how duplicate rows are removed, so that no row is in both the training set and the eval set."""

    rows: Literal["near", "exact", "none"] = "near"
    """`near`: near-duplicates by word n-grams (requires the extra `data` on the worker); `exact`: equal except for case
    and whitespace; `none`: keep all rows."""

    @model_validator(mode="after")
    def _effective(self) -> CampaignDedupeSpec:
        unused = sorted(self.model_fields_set & set(NearSpec.model_fields)) if self.rows != "near" else []
        if unused:
            raise many_wrong([(key, f"has no effect with rows: {self.rows}", "remove it") for key in unused])
        return self
