"""The base of every block of a workflow file, and the field types that blocks share."""

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
from tunefleet.validation_errors import UNKNOWN_KEY, message

_SECRET = re.compile(r"\$\{secret:[^{}]*\}|\$\$\{")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")
# No `..` and no leading slash: the Hub library builds cache paths from a revision.
_REVISION: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9_](?:[A-Za-z0-9_.+@-]|/(?=[A-Za-z0-9_])){0,254}")
# Patterns that no Hub id matches, and the error text for each.
_NO_HUB_ID: Final = (
    (re.compile(r"\\|^[A-Za-z]:"), "is a Windows path"),
    (re.compile("://"), "is a URL"),
    (re.compile(r"[^\w./-]", re.ASCII), "contains {!r}"),
    (re.compile("/.*/"), "has more than one slash"),
    (re.compile("/$"), "has nothing after the slash"),
    (re.compile("[^/]{97}"), "has a part of more than 96 characters"),
    (re.compile(r"\.\.|--"), "contains {!r}"),
    (re.compile(r"(?:^|/)[-.]|[-.](?:/|$)"), "has a part that begins or ends with '-' or '.'"),
    (re.compile(r"\.git$"), "ends with .git"),
)
_URL = re.compile(r"https?://[^\s/?#]\S*", re.IGNORECASE)
_MAX_HEADERS: Final = 50
# `s3://BUCKET/PREFIX`, with S3's naming rules for buckets; groups: bucket, prefix.
BUCKET_URL: Final = re.compile(
    r"s3://((?!-)(?=[a-z0-9.-]{3,63}(?:/|$))[a-z0-9-]+(?<!-)(?:\.(?!-)[a-z0-9-]+(?<!-))*)(?:/(.*))?"
)
# Built-in models and datasets are resolved on the worker and never uploaded.
BUILTIN_PREFIX: Final = "builtin:"
BUILTIN_MODELS: Final = ("builtin:gsm8k-llama-2m",)
BUILTIN_DATASETS: Final = ("builtin:extraction", "builtin:gsm8k", "builtin:gsm8k-preferences")


class Block(BaseModel):
    """A mapping in a workflow file: frozen, unknown keys rejected, a key without a value counts as not set.

    The docstring under an attribute is its description in the JSON Schema and in the reference.
    """

    # `defer_build`: validators are built on first use, since a process needs a few of some three hundred blocks.
    # For the same reason nested blocks have a default factory: a default instance would be built at import.
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
        """Add the fields' descriptions, and the defaults of nested blocks, which pydantic omits for factories."""
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
        # `training:` with every line below it commented out is null in YAML; users mean "the defaults".
        if not isinstance(data, dict):
            return data
        known = _names(cls)
        return {key: value for key, value in data.items() if value is not None or key not in known}


@functools.cache
def _names(block: type[Block]) -> frozenset[str]:
    """Return the keys of a block and the names of its fields, which code may use as keys."""
    return frozenset(known_keys(block) | block.model_fields.keys())


def known_keys(block: type[BaseModel]) -> set[str]:
    """Return the keys of a block, as spelled in a workflow file."""
    return {field.alias or name for name, field in block.model_fields.items()}


def wrong(message: str, hint: str | None = None, *, at: str = "") -> PydanticCustomError:
    """Create an error for a validator to raise.

    Args:
        message: What is wrong.
        hint: What to write instead.
        at: Key below the validated block that causes it.
    """
    return many_wrong([(at, message, hint)])


def many_wrong(faults: Sequence[tuple[str, str, str | None]]) -> PydanticCustomError:
    """Create one error from several `(key, message, hint)`, since a validator can raise only one."""
    text = "; ".join(message for _, message, _ in faults)
    return PydanticCustomError("tunefleet", "{text}", {"text": text, "faults": list(faults)})


def only(allowed: Any, message: str, hint: str) -> BeforeValidator:
    """Accept a single value and reject all others with a reason, rather than ignore them."""

    def check(value: Any) -> Any:
        # Types are compared too, because `1 == True` in Python.
        if type(value) is not type(allowed) or value != allowed:
            raise wrong(message, hint)
        return value

    return BeforeValidator(check)


def one_of_words(aliases: dict[str, str]) -> Callable[[Any], Any]:
    """Return a validator that lowercases a word and replaces its aliases."""

    def check(value: Any) -> Any:
        return aliases.get(value.lower(), value.lower()) if isinstance(value, str) else value

    return check


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise wrong(f"must be a number, not {str(value).lower()}")
    return value


def as_list(value: Any) -> Any:
    """Wrap a single string in a list."""
    return [value] if isinstance(value, str) else value


def _plain(value: str) -> str:
    # Secrets are resolved on the worker; other references must have been replaced before.
    if "${" in _SECRET.sub("", value):
        raise wrong("contains a reference, which is not resolved here", "write the value itself")
    if not value.strip() or any(character in value for character in "\0\r\n"):
        raise wrong("must be a non-empty string of one line")
    return value


def _in_64_bits(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise wrong("is too large", "integers have 64 bits")
    return value


NotBool = BeforeValidator(_no_bool)
# For integers without a limit of their own: the database and JSON parsers accept no larger ones.
In64Bits = AfterValidator(_in_64_bits)
PositiveInt = Annotated[int, Field(ge=1), In64Bits, NotBool]
NaturalInt = Annotated[int, Field(ge=0), In64Bits, NotBool]
PositiveFloat = Annotated[float, Field(gt=0), NotBool]
NaturalFloat = Annotated[float, Field(ge=0), NotBool]
# A fraction, excluding 1.
Share = Annotated[float, Field(ge=0, lt=1), NotBool]
# A name or a path: one non-empty line.
Text = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_plain)]


def unseen(at: str = "") -> PydanticCustomError:
    """Create an error for a string with invisible characters."""
    return wrong("contains invisible characters", "remove them; some change the writing direction", at=at)


def is_seen(value: str) -> bool:
    """Whether all characters of a line are visible; spaces of any width are."""
    return value.isprintable() or all(each.isprintable() or unicodedata.category(each) == "Zs" for each in value)


def _label(value: str) -> str:
    if not is_seen(value):
        raise unseen()
    return value


# A display name: one line without control characters, safe for terminals and web pages.
Label = Annotated[Text, AfterValidator(_label)]


def _inside(value: str) -> str:
    parts = value.replace("\\", "/").split("/")
    # A drive letter ("C:") makes a path absolute on Windows.
    if value.startswith(("/", "~")) or ".." in parts or ":" in parts[0]:
        raise wrong("must be a relative path", "write it without a leading / and without ..")
    if not value.isprintable():
        raise unseen()
    return value


# A path below a folder.
RelativePath = Annotated[Text, AfterValidator(_inside)]


def _part(value: str) -> str:
    if value in {".", ".."} or "/" in value or "\\" in value or not value.isprintable():
        raise wrong("must be a name without slashes")
    return value


# The name of one file or folder, i.e. one path component.
FileName = Annotated[Text, AfterValidator(_part)]


def _url(value: str) -> str:
    # May contain `${secret:NAME}`, which the worker resolves.
    if not is_url(value):
        raise wrong("must be a URL that starts with http:// or https://")
    return value


def is_url(value: str) -> bool:
    """Whether a string is an http(s) URL and not a path."""
    if _URL.fullmatch(value) is None:
        return False
    try:
        parts = urlsplit(value)
        _ = "${" in value or parts.port  # raises for an invalid port; with a secret only the worker knows it
    except ValueError:
        return False  # such as http://[::1 or http://host:port
    return True


def is_written_as_path(value: str) -> bool:
    """Whether a string can only be a path and not a Hub id: it starts with `./`, `../`, `/` or `~`."""
    return value in {".", ".."} or value.startswith(("./", "../", "/", "~"))


def hub_id_error(value: str) -> str | None:
    """Return why a string cannot be a Hub id (`NAME` or `ORG/NAME`); `None` if it can."""
    if is_written_as_path(value):
        return "is a path"
    found = ((pattern.search(value), text) for pattern, text in _NO_HUB_ID)
    return next((text.format(match[0]) for match, text in found if match is not None), None)


def is_revision(value: str) -> bool:
    """Whether a string may be a branch, tag or commit that is safe as a path in the Hub library's cache."""
    return _REVISION.fullmatch(value) is not None


def _revision(value: str) -> str:
    if not is_revision(value):
        raise wrong("is not a valid branch, tag or commit", "write it without a leading / and without ..")
    return value


# A branch, tag or commit of a Hub repository.
Revision = Annotated[Text, AfterValidator(_revision)]


def is_hub_name(value: str) -> bool:
    """Whether a string may be the name of a Hub repository, such as `org/name`."""
    return _HUB_NAME.fullmatch(value) is not None


# An http or https URL.
Url = Annotated[Text, AfterValidator(_url)]
# A timeout in seconds, at most one week.
Timeout = Annotated[float, Field(gt=0, le=7 * 86_400), NotBool]


def _headers(value: dict[str, str]) -> dict[str, str]:
    if len(value) > _MAX_HEADERS:
        raise wrong(f"has {len(value)} entries; at most {_MAX_HEADERS} are allowed")
    seen: set[str] = set()
    for name, text in value.items():
        if not _HEADER.fullmatch(name) or any(character in text for character in "\0\r\n"):
            raise wrong("is not a valid HTTP header", "use a name without spaces and a value of one line", at=name)
        # HTTP would send both, and servers differ in which one they use.
        if name.lower() in seen:
            raise wrong("is a duplicate: header names are case-insensitive", "remove one of them", at=name)
        seen.add(name.lower())
    return value


# Headers of an HTTP request; secrets are written as `${secret:NAME}`.
Headers = Annotated[dict[str, str], AfterValidator(_headers)]


def one_of(block: type[Block], *others: type) -> BeforeValidator:
    """Validate a value that may be a block or a plain value, so that errors point to the right key.

    Args:
        block: The block for mappings.
        others: Other allowed types.
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
    words = {str: "a string", int: "a number", dict: "a mapping", list: "a list"}
    return "".join(f"{words[kind]} or " for kind in kinds)


def as_block(block: type[Block], value: Mapping[str, Any]) -> Block:
    """Validate a mapping inside a validator.

    Raises:
        PydanticCustomError: With one entry per invalid key.
    """
    try:
        return block.model_validate(dict(value), by_alias=True, by_name=False)
    # pydantic does not allow to raise its own error within a validator, so it is converted.
    except ValidationError as error:
        faults: list[tuple[str, str, str | None]] = []
        for detail in error.errors(include_url=False):
            at = ".".join(str(part) for part in detail["loc"])
            known = f"known keys: {', '.join(sorted(known_keys(block)))}"
            match detail["type"]:
                case "extra_forbidden":
                    faults.append((at, UNKNOWN_KEY, known))
                case "missing":
                    faults.append((at, "is required", None))
                case "tunefleet":
                    inner = detail["ctx"]["faults"]
                    faults += [(".".join(filter(None, (at, below))), text, hint) for below, text, hint in inner]
                case _:
                    faults.append((at, message(detail), None))
        raise many_wrong(faults) from None


def camel_case(data: Any, block: type[BaseModel]) -> Any:
    """Convert `maxTokens` to `max_tokens` in a mapping, for all keys of a block.

    Raises:
        PydanticCustomError: If both spellings are given.
    """
    if not isinstance(data, Mapping):
        return data
    names = {re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), key): key for key in known_keys(block)}
    # A key in both spellings is ambiguous.
    both = [key for key in data if key in names and names[key] != key and names[key] in data]
    if both:
        raise wrong(f"is an alias of {names[both[0]]}", "remove one of them", at=both[0])
    return {names.get(key, key): value for key, value in data.items()}


# A mapping with keys of a third-party library.
FreeMapping = Annotated[dict[str, Any], WithJsonSchema({"type": "object"})]


def _known(what: str, names: tuple[str, ...]) -> Callable[[str], str]:
    def check(value: str) -> str:
        if not value.startswith(BUILTIN_PREFIX) or value in names:
            return value
        close = nearest(value, list(names))
        meant = f"did you mean {close}? " if close is not None else ""
        raise wrong(f"is not a built-in {what}: {value}", f"{meant}Built in: {', '.join(names)}")

    return check


ABuiltinModel: Final = AfterValidator(_known("model", BUILTIN_MODELS))
ABuiltinDataset: Final = AfterValidator(_known("dataset", BUILTIN_DATASETS))
# A Hub id, a local path or `builtin:NAME`.
ModelName = Annotated[Text, ABuiltinModel]
