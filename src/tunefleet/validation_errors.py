"""pydantic's errors in our words: what is wrong with which value, and where. Every such error becomes text here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from tunefleet.errors import Fault

_MAX_VALUE_CHARACTERS: Final = 60
_MAPPING: Final = "must be a mapping{not_value}"
_LIST: Final = "must be a list{not_value}"
_STRING: Final = "must be a string{not_value}"
_INTEGER: Final = "must be an integer{not_value}"
_NUMBER: Final = "must be a number{not_value}"
_FLAG: Final = "must be true or false{not_value}"
_DATE: Final = "must be a date, such as 2026-01-31{not_value}"
_TIME: Final = "must be a time, such as 09:30:00{not_value}"
_DATETIME: Final = "must be a date with a time, such as 2026-01-31T09:30:00Z{not_value}"
_DURATION: Final = "must be a duration, such as 90 or PT1M30S{not_value}"
_UUID: Final = "must be a UUID{not_value}"
_URL: Final = "must be a URL, such as https://example.org{not_value}"
_BYTES: Final = "must be text or bytes{not_value}"
_NESTED: Final = "is nested too deeply"
_INVALID: Final = "is invalid{not_value}"

UNKNOWN_KEY: Final = "is not a known key"

# pydantic's error type → message; `{not_value}` is `, not VALUE`, other names are of pydantic's context.
_SENTENCES: Final[dict[str, str]] = {
    "missing": "is required",
    "extra_forbidden": UNKNOWN_KEY,
    "frozen_field": "cannot be changed",
    "frozen_instance": "cannot be changed",
    "none_required": "must be empty{not_value}",
    "missing_sentinel_error": "must be left out{not_value}",
    "invalid_key": "must have strings as keys",
    "json_invalid": "is not valid JSON: {error}",
    "json_type": "must be JSON text{not_value}",
    "recursion_loop": "refers to itself",
    "recursion_depth_exceeded": _NESTED,
    "int_type": _INTEGER,
    "int_parsing": _INTEGER,
    "int_from_float": _INTEGER,
    "int_parsing_size": "is too large: integers have 64 bits",
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "must be a finite number{not_value}",
    "decimal_type": _NUMBER,
    "decimal_parsing": _NUMBER,
    "decimal_max_digits": "must have at most {max_digits} digits{not_value}",
    "decimal_max_places": "must have at most {decimal_places} decimal places{not_value}",
    "decimal_whole_digits": "must have at most {whole_digits} digits before the decimal point{not_value}",
    "fraction_type": _NUMBER,
    "fraction_parsing": _NUMBER,
    "complex_type": _NUMBER,
    "complex_str_parsing": _NUMBER,
    "greater_than": "must be greater than {gt}{not_value}",
    "greater_than_equal": "must be at least {ge}{not_value}",
    "less_than": "must be less than {lt}{not_value}",
    "less_than_equal": "must be at most {le}{not_value}",
    "multiple_of": "must be a multiple of {multiple_of}{not_value}",
    "bool_type": _FLAG,
    "bool_parsing": _FLAG,
    "string_type": _STRING,
    "string_unicode": "must be valid UTF-8",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match the pattern {pattern}{not_value}",
    "string_not_ascii": "must have ASCII characters only{not_value}",
    "bytes_type": _BYTES,
    "bytes_too_short": "must have at least {min_length} bytes",
    "bytes_too_long": "must have at most {max_length} bytes",
    "bytes_invalid_encoding": "must be valid {encoding}",
    "literal_error": "must be one of {expected}{not_value}",
    "enum": "must be one of {expected}{not_value}",
    "union_tag_invalid": "must have one of {expected_tags} as {discriminator}, not {tag}",
    "union_tag_not_found": "must have {discriminator}",
    "tuple_type": _LIST,
    "list_type": _LIST,
    "set_type": _LIST,
    "frozen_set_type": _LIST,
    "deque_type": _LIST,
    "iterable_type": _LIST,
    "iteration_error": _LIST,
    "set_item_not_hashable": "must have plain values as entries",
    "too_long": "must have at most {max_length} {entries_most}, not {actual_length}",
    "dict_type": _MAPPING,
    "frozen_dict_type": _MAPPING,
    "ordered_dict_type": _MAPPING,
    "counter_type": _MAPPING,
    "mapping_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "dataclass_type": _MAPPING,
    "dataclass_exact_type": _MAPPING,
    "named_tuple_type": _MAPPING,
    "arguments_type": _MAPPING,
    "date_type": _DATE,
    "date_parsing": _DATE,
    "date_from_datetime_parsing": _DATE,
    "date_from_datetime_inexact": "must be a date without a time{not_value}",
    "date_past": "must be in the past{not_value}",
    "date_future": "must be in the future{not_value}",
    "time_type": _TIME,
    "time_parsing": _TIME,
    "datetime_type": _DATETIME,
    "datetime_parsing": _DATETIME,
    "datetime_object_invalid": _DATETIME,
    "datetime_from_date_parsing": _DATETIME,
    "datetime_past": "must be in the past{not_value}",
    "datetime_future": "must be in the future{not_value}",
    "timezone_naive": "must have no time zone{not_value}",
    "timezone_aware": "must have a time zone, such as Z{not_value}",
    "timezone_offset": "must have the time zone offset {tz_expected}{not_value}",
    "time_delta_type": _DURATION,
    "time_delta_parsing": _DURATION,
    "url_type": _URL,
    "url_parsing": _URL,
    "url_syntax_violation": _URL,
    "url_too_long": "must have at most {max_length} characters",
    "url_scheme": "must begin with {expected_schemes}{not_value}",
    "uuid_type": _UUID,
    "uuid_parsing": _UUID,
    "uuid_version": "must be a UUID of version {expected_version}{not_value}",
    # Of Python code, which no document can cause.
    **dict.fromkeys(
        (
            "no_such_attribute", "needs_python_object", "get_attribute_error", "default_factory_not_called",
            "ellipsis_error", "is_instance_of", "is_subclass_of", "callable_type", "missing_argument",
            "unexpected_keyword_argument", "missing_keyword_only_argument", "unexpected_positional_argument",
            "missing_positional_only_argument", "multiple_argument_values",
        ),
        _INVALID,
    ),
}  # fmt: skip
_OF_ANOTHER_TYPE: Final = ("_type", "_parsing")
_QUOTED_WORD: Final = re.compile(r"'((?:[^'\\]|\\.)*)'")
# pydantic adds the kinds of a union to the place, such as `int` or `function-after[check(), str]`.
_KIND_OF_A_UNION: Final = re.compile(
    r"[\[(]|^(?:constrained|function|lax-or-strict|json-or-python|is-instance)\b|^(?:int|float|str|bool|bytes)$"
)
_KINDS: Final = re.compile(r"must be (?P<kinds>.+?)(?P<rest>, not .+)?", re.DOTALL)


def cut(text: str, most: int = _MAX_VALUE_CHARACTERS) -> str:
    """Truncate a long string."""
    return text if len(text) <= most else f"{text[: most - 3]}…"


def show(value: Any) -> str:
    """Format a value for a message; strings are quoted."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return repr(cut(value))
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case int() if value.bit_length() > 64:  # Python limits the digits that `str()` formats
            return "an integer of more than 64 bits"
        case _:
            return cut(str(value))


def message(detail: Mapping[str, Any], *, quoted: bool = True) -> str:
    """Return what is wrong, without the place.

    Args:
        detail: An entry of `ValidationError.errors()`.
        quoted: Whether to quote strings: those of a request may be secrets.
    """
    kind, ctx = detail["type"], detail.get("ctx") or {}
    if kind in {"value_error", "assertion_error"}:
        # The text of our own validator.
        return str(ctx.get("error") or detail["msg"].partition(", ")[2])
    values = {name: int(each) if isinstance(each, float) and each.is_integer() else each for name, each in ctx.items()}
    template = _SENTENCES.get(kind) or _counted(kind, values)
    # Raised with `PydanticCustomError`: a message of ours.
    if template is None:
        return str(detail["msg"])
    for name in ("expected", "expected_tags"):
        if name in values:
            text = str(values[name])
            values[name] = ", ".join(_QUOTED_WORD.findall(text)) or text
    values["entries_most"] = "entry" if values.get("max_length") == 1 else "entries"
    return template.format_map(_Named(values, not_value=_not(detail, quoted=quoted)))


class _Named(dict[str, Any]):
    """Values of a message; one that pydantic left out is a gap and no exception."""

    def __missing__(self, key: str) -> str:
        return "…"


def _counted(kind: str, values: Mapping[str, Any]) -> str | None:
    least = values.get("min_length")
    if kind == "string_too_short":
        return "must not be empty" if least in {None, 1} else "must have at least {min_length} characters"
    if kind == "too_short":
        return "must have at least {min_length} " + ("entry" if least == 1 else "entries")
    return None


def _not(detail: Mapping[str, Any], *, quoted: bool) -> str:
    if "input" not in detail:
        return ""
    value = detail["input"]
    # An address is no secret; what a body or header contains may be one.
    if quoted or not isinstance(value, str) or detail["loc"][:1] in {("query",), ("path",)}:
        return f", not {show(value)}"
    return ", not a string" if detail["type"].endswith(_OF_ANOTHER_TYPE) else ""


def place(loc: Iterable[str | int]) -> str:
    """Return the dotted path of an error, without the kinds of a union that pydantic adds to it."""
    return ".".join(str(part) for part in loc if isinstance(part, int) or not _KIND_OF_A_UNION.search(part))


def faults(details: Iterable[Mapping[str, Any]], *, quoted: bool = True) -> list[Fault]:
    """Return errors with their places; what a union's kinds say of one value becomes one error."""
    found: list[Fault] = []
    for each in details:
        fault = Fault(place(each["loc"]), message(each, quoted=quoted))
        joined = _either(found[-1], fault) if found and found[-1].path == fault.path else None
        found[-1:] = [*found[-1:], fault] if joined is None else [joined]
    return list(dict.fromkeys(found))


def _either(one: Fault, other: Fault) -> Fault | None:
    """Return `must be A or B, not VALUE` of two errors that differ in A and B only."""
    first, second = _KINDS.fullmatch(one.message), _KINDS.fullmatch(other.message)
    if first is None or second is None or first["rest"] != second["rest"] or first["kinds"] == second["kinds"]:
        return None
    return Fault(one.path, f"must be {first['kinds']} or {second['kinds']}{first['rest'] or ''}")


def summary(error: ValidationError | Sequence[Mapping[str, Any]], *, most: int = 3, quoted: bool = True) -> str:
    """Return the first errors in one line, such as `limits.steps must be an integer, not 'many'`."""
    details = error.errors(include_url=False) if isinstance(error, ValidationError) else error
    found = faults(details, quoted=quoted)
    listed = "; ".join(f"{each.path or 'it'} {each.message}" for each in found[:most])
    return f"{listed}; and {len(found) - most} more" if len(found) > most else listed
