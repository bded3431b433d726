"""Names that a stranger may send: one list for every place where a name enters."""

from __future__ import annotations

from typing import Final

NAMES: Final = {
    "nothing": "",
    "a blank": " ",
    "blanks around": " name ",
    "here": ".",
    "above": "..",
    "a path": "../../etc/passwd",
    "an absolute path": "/etc/passwd",
    "a folder": "a/b",
    "a folder of Windows": "a\\b",
    "two lines": "one\ntwo",
    "a return": "one\rtwo",
    "a tab": "one\ttwo",
    "a null byte": "a\0b",
    "an escape": "\x1b[2J\x1b]0;owned\x07",
    "a C1 command": "a\x9b31mb",
    "a turned direction": "adm\u202enimda",
    "an isolate": "a\u2066b\u2069",
    "an invisible mark": "ad\u200bmin",
    "half a character": "a\ud800b",
    "a line separator": "a\u2028b",
    "very long": "x" * 100_000,
}
"""What it is → the name."""
HARMLESS: Final = ("a", "lab-1", "Meine Maschine", "机器-7", "host.example.org:8001", "a_b@c", "x" * 128)
"""Names that people give."""
