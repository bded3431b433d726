"""Which secrets a machine has, where their values are put in, and that they are hidden again."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefleet.errors import InputError
from tunefleet.runtime.secrets import Redaction, Secrets


def file(folder: Path, name: str, text: str, mode: int = 0o600) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(mode)


def test_names_come_from_variables_and_from_files_that_nobody_else_can_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file(tmp_path, "FILED", "value-of-file\n")
    file(tmp_path, "BOTH", "of the file")
    file(tmp_path, "OPEN", "everybody reads me", 0o644)
    file(tmp_path, "SHORT", "abc")
    file(tmp_path, "not a name", "value-of-file")
    (tmp_path / "FOLDER").mkdir()
    with caplog.at_level(logging.WARNING):
        secrets = Secrets({"BOTH": "of the variable", "TINY": "1"}, tmp_path)
        assert secrets.names() == ("BOTH", "FILED")
    assert (secrets.get("FILED"), secrets.get("BOTH")) == ("value-of-file", "of the variable")
    assert [secrets.get(name) for name in ("OPEN", "SHORT", "TINY", "FOLDER", "../FILED", "MISSING")] == [None] * 6
    assert "other users can read its file" in caplog.text
    assert "TINY" in caplog.text
    assert Secrets({}, tmp_path / "nowhere").names() == ()


def test_fault_37_a_spec_is_filled_where_it_is_computed() -> None:
    secrets = Secrets({"QDRANT_API_KEY": "value-1"})
    spec = {"rag": {"key": "${secret:QDRANT_API_KEY}"}, "items": ["x ${secret:QDRANT_API_KEY}", "$${literal}", 3]}
    assert secrets.fill(spec) == {"rag": {"key": "value-1"}, "items": ["x value-1", "${literal}", 3]}
    assert spec["rag"] == {"key": "${secret:QDRANT_API_KEY}"}
    plain = {"items": ["nothing to see"]}
    assert secrets.fill(plain) is plain
    with pytest.raises(InputError, match="needs the secret OTHER"):
        secrets.fill(["${secret:OTHER}"])


def test_only_what_a_spec_names_is_hidden() -> None:
    secrets = Secrets({"A": "value-a", "B": "value-b"})
    hidden = secrets.redaction({"key": "${secret:A}"})
    assert hidden.value({"said": ["value-a and value-b", 1, None]}) == {"said": ["${secret:A} and value-b", 1, None]}
    assert not secrets.redaction({"key": "none"})


# Without what JSON escapes by number: an escape that has the value's digits is rather broken than a value shown.
AROUND = st.text(st.characters(min_codepoint=32, max_codepoint=126) | st.sampled_from("\b\f\n\r\t"), max_size=5)


@given(
    value=st.text(min_size=4).filter(lambda text: len(text.strip()) >= 4),
    around=st.tuples(AROUND, AROUND),
)
def test_a_value_is_hidden_however_json_writes_it_and_bytes_keep_their_places(
    value: str, around: tuple[str, str]
) -> None:
    hidden = Redaction({"NAME": value})
    text = value.join(around)
    assert value not in hidden.text(text).replace("${secret:NAME}", "\x00")
    for line in (json.dumps({"m": text}), json.dumps({"m": text}, ensure_ascii=False)):
        cleaned = json.loads(hidden.text(line).replace("${secret:NAME}", ""))
        assert value not in cleaned["m"]
    data = f"log {text} end".encode(errors="replace")
    if value.encode(errors="replace") == value.encode(errors="ignore"):
        assert len(hidden.same_length(data)) == len(data)


def test_of_two_values_the_longer_one_is_hidden_first() -> None:
    assert Redaction({"A": "abcd", "B": "abcdefgh"}).text("abcdefgh abcd") == "${secret:B} ${secret:A}"
