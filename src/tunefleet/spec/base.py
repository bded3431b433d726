"""The base of every block of a document, and the number types that they share."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from tunefleet.spec.descriptions import descriptions
from tunefleet.spec.value_preview import nearest

_SECRET = re.compile(r"\$\{secret:[^{}]*\}|\$\$\{")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")
_REVISION: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9_](?:[A-Za-z0-9_.+@-]|/(?=[A-Za-z0-9_])){0,254}")
_NO_HUB_ID: Final = (
    (re.compile(r"\\|^[A-Za-z]:"), "is written as a Windows path"),
    (re.compile("://"), "is an address"),
    (re.compile(r"[^\w./-]", re.ASCII), "has {!r}"),
    (re.compile("/.*/"), "has more than one slash"),
    (re.compile("/$"), "has nothing after its slash"),
    (re.compile("[^/]{97}"), "has a part of more than 96 characters"),
    (re.compile(r"\.\.|--"), "has {!r}"),
    (re.compile(r"(?:^|/)[-.]|[-.](?:/|$)"), "has a part that begins or ends with '-' or '.'"),
    (re.compile(r"\.git$"), "ends with .git"),
)
"""What no id of the hub matches, and how an error says so."""
_URL = re.compile(r"https?://[^\s/?#]\S*", re.IGNORECASE)
_MAX_HEADERS: Final = 50
UNKNOWN_KEY: Final = "is not a known key"


class Block(BaseModel):
    """A mapping in a document: frozen, unknown keys refused, a key without a value counts as not given.

    The docstring under an attribute is its description in the JSON Schema and in the reference. Its validator is built
    when the first one is made: a process sees a few of some three hundred. So a block within a block has a factory for
    its default, since an instance would be made at import.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the descriptions of the fields, and the defaults of those that are blocks: a factory's is left out."""
        made = handler(core_schema)
        properties = handler.resolve_ref_schema(made).get("properties", {})
        for name, field in cls.model_fields.items():
            make = field.default_factory
            key = field.alias or name
            if key in properties and isinstance(make, type) and issubclass(make, BaseModel):
                properties[key]["default"] = make().model_dump(mode="json", by_alias=True)
        for name, text in descriptions(cls).items():
            key = cls.model_fields[name].alias or name
            if key in properties:
                properties[key].setdefault("description", text)
        return made

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:
        # `training:` with every line below it commented out is null; people mean "the defaults".
        if not isinstance(data, dict):
            return data
        known = _names(cls)
        return {key: value for key, value in data.items() if value is not None or key not in known}


@functools.cache
def _names(block: type[Block]) -> frozenset[str]:
    """Return the keys that a block takes, and the names of its fields, which code may use as keys."""
    return frozenset(known_keys(block) | block.model_fields.keys())


def known_keys(block: type[BaseModel]) -> set[str]:
    """Return the keys that a block takes, as they are spelled in a document."""
    return {field.alias or name for name, field in block.model_fields.items()}


def wrong(message: str, hint: str | None = None, *, at: str = "") -> PydanticCustomError:
    """Make an error for a validator to raise.

    Args:
        message: What is wrong.
        hint: What to write instead.
        at: Key, below the validated block, that is to blame.
    """
    return many_wrong([(at, message, hint)])


def many_wrong(faults: Sequence[tuple[str, str, str | None]]) -> PydanticCustomError:
    """Make one error out of several `(key, message, hint)`; a validator can raise only one."""
    text = "; ".join(message for _, message, _ in faults)
    return PydanticCustomError("tunefleet", "{text}", {"text": text, "faults": list(faults)})


def only(allowed: Any, message: str, hint: str) -> BeforeValidator:
    """Accept a single value; refuse every other one with a reason, so that no option is silently without effect."""

    def check(value: Any) -> Any:
        if type(value) is not type(allowed) or value != allowed:
            raise wrong(message, hint)
        return value

    return BeforeValidator(check)


def one_of_words(aliases: dict[str, str]) -> Callable[[Any], Any]:
    """Return a validator that replaces other spellings of a word; case is ignored."""

    def check(value: Any) -> Any:
        return aliases.get(value.lower(), value.lower()) if isinstance(value, str) else value

    return check


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise wrong(f"must be a number, not {str(value).lower()}")
    return value


def as_list(value: Any) -> Any:
    """Take one string for a list of one."""
    return [value] if isinstance(value, str) else value


def _plain(value: str) -> str:
    if "${" in _SECRET.sub("", value):
        raise wrong("has a reference that nothing resolves", "write the value itself")
    if not value.strip() or any(character in value for character in "\0\r\n"):
        raise wrong("must be one line of text")
    return value


def _in_64_bits(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise wrong("is too large", "whole numbers have 64 bits")
    return value


NotBool = BeforeValidator(_no_bool)
In64Bits = AfterValidator(_in_64_bits)
"""For whole numbers without a limit of their own: the database and JSON take no larger ones."""
PositiveInt = Annotated[int, Field(ge=1), In64Bits, NotBool]
NaturalInt = Annotated[int, Field(ge=0), In64Bits, NotBool]
PositiveFloat = Annotated[float, Field(gt=0), NotBool]
NaturalFloat = Annotated[float, Field(ge=0), NotBool]
Share = Annotated[float, Field(ge=0, lt=1), NotBool]
"""A part of one, one itself excluded."""
# A name or a path: one line that is not empty.
Text = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_plain)]


def unseen(at: str = "") -> PydanticCustomError:
    """Make an error for a text of which not all can be seen."""
    return wrong("has characters that cannot be shown", "some of them turn the direction of writing", at=at)


def is_seen(value: str) -> bool:
    """Whether all of a line can be seen; blanks of any width can."""
    return value.isprintable() or all(each.isprintable() or unicodedata.category(each) == "Zs" for each in value)


def _label(value: str) -> str:
    if not is_seen(value):
        raise unseen()
    return value


# What people call something: one line that terminals and pages show as it is.
Label = Annotated[Text, AfterValidator(_label)]


def _inside(value: str) -> str:
    parts = value.replace("\\", "/").split("/")
    if value.startswith(("/", "~")) or ".." in parts or ":" in parts[0]:
        raise wrong("must be a path inside the folder", "write it without a leading / and without ..")
    if not value.isprintable():
        raise unseen()
    return value


# A path below some folder.
RelativePath = Annotated[Text, AfterValidator(_inside)]


def _part(value: str) -> str:
    if value in {".", ".."} or "/" in value or "\\" in value or not value.isprintable():
        raise wrong("must be a name without slashes")
    return value


# The name of one file or folder, which a path is made of.
FileName = Annotated[Text, AfterValidator(_part)]


def _url(value: str) -> str:
    # A secret in it is filled in by the worker.
    if not is_url(value):
        raise wrong("must be an address that starts with http:// or https://")
    return value


def is_url(value: str) -> bool:
    """Whether a text is an address that is fetched, and not a path."""
    if _URL.fullmatch(value) is None:
        return False
    try:
        parts = urlsplit(value)
        _ = "${" in value or parts.port  # with a secret in it, it is known on the worker only
    except ValueError:
        return False  # such as http://[::1 or http://host:port
    return True


# `s3://BUCKET/PREFIX`, with S3's rules for the names of buckets; bucket and prefix are groups.
BUCKET_URL: Final = re.compile(
    r"s3://((?!-)(?=[a-z0-9.-]{3,63}(?:/|$))[a-z0-9-]+(?<!-)(?:\.(?!-)[a-z0-9-]+(?<!-))*)(?:/(.*))?"
)


def is_written_as_path(value: str) -> bool:
    """Whether a text can only be a path, and no name of a hub: it starts with `./`, `../`, `/` or `~`."""
    return value in {".", ".."} or value.startswith(("./", "../", "/", "~"))


def hub_id_error(value: str) -> str | None:
    """Return why a text can be no id of a model or dataset of the hub, `NAME` or `ORG/NAME`; null if it can be one."""
    if is_written_as_path(value):
        return "is written as a path"
    found = ((pattern.search(value), text) for pattern, text in _NO_HUB_ID)
    return next((text.format(match[0]) for match, text in found if match is not None), None)


def is_revision(value: str) -> bool:
    """Whether a text may be a branch, tag or commit: the hub's library makes paths of it in its cache."""
    return _REVISION.fullmatch(value) is not None


def _revision(value: str) -> str:
    if not is_revision(value):
        raise wrong("is no branch, tag or commit of the hub", "write it without a leading / and without ..")
    return value


# A branch, tag or commit of a repository of the hub.
Revision = Annotated[Text, AfterValidator(_revision)]


def is_hub_name(value: str) -> bool:
    """Whether a text may be the name of a repository of the hub, such as `org/name`."""
    return _HUB_NAME.fullmatch(value) is not None


# An http or https address.
Url = Annotated[Text, AfterValidator(_url)]
# Seconds to wait for something, a week at most.
Timeout = Annotated[float, Field(gt=0, le=7 * 86_400), NotBool]


def _headers(value: dict[str, str]) -> dict[str, str]:
    if len(value) > _MAX_HEADERS:
        raise wrong(f"has {len(value)} entries; at most {_MAX_HEADERS} are allowed")
    seen: set[str] = set()
    for name, text in value.items():
        if not _HEADER.fullmatch(name) or any(character in text for character in "\0\r\n"):
            raise wrong("is not a header of HTTP", "a name without spaces, and a value of one line", at=name)
        if name.lower() in seen:
            raise wrong("is given twice in another case", "leave one of them out", at=name)
        seen.add(name.lower())
    return value


# Headers of an HTTP request; a secret among them is written `${secret:NAME}`.
Headers = Annotated[dict[str, str], AfterValidator(_headers)]


def one_of(block: type[Block], *others: type) -> BeforeValidator:
    """Check a value that may be a block or something plain, so that a fault stands where it belongs.

    Args:
        block: What a mapping must be.
        others: What else the value may be.
    """

    def check(value: Any) -> Any:
        if isinstance(value, Mapping):
            return as_block(block, value)
        if isinstance(value, (block, *others)):
            return value
        keys = ", ".join(sorted(known_keys(block)))
        raise wrong(f"must be {_named(others)}a mapping with {keys}")

    return BeforeValidator(check)


def _named(kinds: tuple[type, ...]) -> str:
    words = {str: "a text", int: "a number", dict: "a mapping", list: "a list"}
    return "".join(f"{words[kind]} or " for kind in kinds)


def as_block(block: type[Block], value: Mapping[str, Any]) -> Block:
    """Validate a mapping inside a validator.

    Raises:
        PydanticCustomError: With a fault for each key that is wrong.
    """
    try:
        return block.model_validate(dict(value), by_alias=True, by_name=False)
    except ValidationError as error:
        faults: list[tuple[str, str, str | None]] = []
        for detail in error.errors(include_url=False):
            at = ".".join(str(part) for part in detail["loc"])
            known = f"known here: {', '.join(sorted(known_keys(block)))}"
            match detail["type"]:
                case "extra_forbidden":
                    faults.append((at, UNKNOWN_KEY, known))
                case "missing":
                    faults.append((at, "is required", None))
                case "tunefleet":
                    inner = detail["ctx"]["faults"]
                    faults += [(".".join(filter(None, (at, below))), text, hint) for below, text, hint in inner]
                case _:
                    faults.append((at, detail["msg"][:1].lower() + detail["msg"][1:], None))
        raise many_wrong(faults) from None


def camel_case(data: Any, block: type[BaseModel]) -> Any:
    """Take `maxTokens` for `max_tokens` in a mapping, for all keys of a block.

    Raises:
        PydanticCustomError: If both spellings are given.
    """
    if not isinstance(data, Mapping):
        return data
    names = {re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), key): key for key in known_keys(block)}
    both = [key for key in data if key in names and names[key] != key and names[key] in data]
    if both:
        raise wrong(f"means the same as {names[both[0]]}", "leave one of them out", at=both[0])
    return {names.get(key, key): value for key, value in data.items()}


# A mapping whose keys are another library's.
FreeMapping = Annotated[dict[str, Any], WithJsonSchema({"type": "object"})]


# It is resolved on the worker, and never travels.
BUILTIN_PREFIX: Final = "builtin:"
BUILTIN_MODELS: Final = ("builtin:gsm8k-llama-2m",)
BUILTIN_DATASETS: Final = ("builtin:extraction", "builtin:gsm8k", "builtin:gsm8k-preferences")


def _known(what: str, names: tuple[str, ...]) -> Callable[[str], str]:
    def check(value: str) -> str:
        if not value.startswith(BUILTIN_PREFIX) or value in names:
            return value
        close = nearest(value, list(names))
        meant = f"did you mean {close}? " if close is not None else ""
        raise wrong(f"names no built-in {what}: {value}", f"{meant}Built in: {', '.join(names)}")

    return check


ABuiltinModel: Final = AfterValidator(_known("model", BUILTIN_MODELS))
ABuiltinDataset: Final = AfterValidator(_known("dataset", BUILTIN_DATASETS))
ModelName = Annotated[Text, ABuiltinModel]
"""A hub id, a local path or `builtin:NAME`."""
