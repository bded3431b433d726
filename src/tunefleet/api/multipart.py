"""Streams the single file of a multipart body; nothing is buffered in memory or in a temporary file.

Short text fields can be read too; they may come before or after the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from tunefleet.artifacts import check_path
from tunefleet.errors import ArtifactError, InputError

_MAX_HEADERS_BYTES: Final = 16 << 10
_MAX_TEXT_BYTES: Final = 4 << 10


class FilePart:
    """Parses a body in pieces and passes the file's bytes on."""

    def __init__(
        self,
        content_type: str,
        write: Callable[[memoryview], object],
        *,
        field: str = "file",
        reserved: Collection[str] = (),
        texts: Collection[str] = (),
        named: bool = True,
    ) -> None:
        kind, options = parse_options_header(content_type.encode("latin-1"))
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise InputError("The body is not multipart/form-data.", hint=f"Send the file in the field {field!r}.")
        self._field = field.encode()
        self._write = write
        self._reserved = reserved
        self._wanted = frozenset(name.encode() for name in texts)
        self._named = named
        self.texts: dict[str, str] = {}
        """Values of the text fields, by name; complete only after `finish`."""
        self._text: tuple[str, bytearray] | None = None
        self._name: str | None = None
        self._header = (bytearray(), bytearray())
        self._disposition = b""
        self._open = False
        self._whole = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_begin,
                "on_header_field": lambda data, start, end: self._on_header(0, data[start:end]),
                "on_header_value": lambda data, start, end: self._on_header(1, data[start:end]),
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers,
                "on_part_data": self._on_data,
                "on_part_end": self._on_end,
                "on_end": self._on_last,
            },
        )

    def feed(self, data: bytes) -> None:
        """Parse the next piece of the body.

        Raises:
            InputError: If it is malformed, has two files or a duplicate field, or the file name has a folder.
        """
        try:
            self._parser.write(data)
        except MultipartParseError as error:
            raise InputError(f"The multipart body is malformed: {error}.") from error

    def finish(self) -> str:
        """Return the file's name, at the end of the body; empty if names are ignored.

        Raises:
            InputError: If there was no file, or the body is truncated.
        """
        if self._name is None:
            raise InputError(f"The body has no file in the field {self._field.decode()!r}.")
        if not self._whole:
            raise InputError("The multipart body is truncated.", hint="Send it again.")
        return self._name

    def _on_begin(self) -> None:
        self._disposition = b""
        self._text = None

    def _on_header(self, which: int, data: bytes) -> None:
        if len(self._header[which]) + len(data) > _MAX_HEADERS_BYTES:
            raise InputError("A header of the multipart body is too long.")
        self._header[which].extend(data)

    def _on_header_end(self) -> None:
        name, value = self._header
        if bytes(name).lower() == b"content-disposition":
            self._disposition = bytes(value)
        name.clear()
        value.clear()

    def _on_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        field = options.get(b"name")
        self._open = field == self._field
        if self._open:
            self._begin_file(options.get(b"filename", b""))
        elif field in self._wanted:
            self._begin_text(field.decode())

    def _begin_text(self, name: str) -> None:
        if name in self.texts:
            raise InputError(f"The body has the field {name!r} more than once.", hint="Send it once.")
        self.texts[name] = ""
        self._text = name, bytearray()

    def _begin_file(self, name: bytes) -> None:
        if self._name is not None:
            raise InputError("The body has more than one file.", hint="Send one file per request.")
        if not self._named:
            self._name = ""
            return
        self._name = plain_name(name.decode(errors="replace"))
        if self._name in self._reserved:
            names = ", ".join(sorted(self._reserved))
            raise InputError(
                f"The file name {self._name!r} is reserved (reserved names: {names}).", hint="Use another name."
            )

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._open:
            self._write(memoryview(data)[start:end])
        elif self._text is not None:
            name, text = self._text
            if len(text) + end - start > _MAX_TEXT_BYTES:
                raise InputError(f"Field {name!r} exceeds {_MAX_TEXT_BYTES:,} bytes.")
            text += data[start:end]

    def _on_end(self) -> None:
        self._open = False
        if self._text is not None:
            name, text = self._text
            self.texts[name] = text.decode(errors="replace")
            self._text = None

    def _on_last(self) -> None:
        self._whole = True


def plain_name(name: str) -> str:
    """Return a file name that has no folder and no leading dot."""
    try:
        plain = check_path(name) == name and "/" not in name and not name.startswith(".")
    except ArtifactError:
        plain = False
    if not plain:
        raise InputError(
            f"{name[:200]!r} is not a plain file name.", hint="Send a name without folders and without a leading dot."
        )
    return name
