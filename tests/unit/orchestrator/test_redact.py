"""What looks like a secret is hidden where a document is read back; everything else stays."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tunefleet.orchestrator import redaction

DOCUMENT = """# a note
spec:
  headers: {Authorization: "Bearer a, b}", 'X-API-Key': abc, Accept: text}
  api_key: sk-123   # the real one
  hf_token:   hf_abc
  password: |
    line one
    line two
  max_tokens: 12
  tokenizer: gpt2
  secret: ${secret:NAME}
  token: ''
  url: https://me:hunter2@host/x?token=abcdef&y=1
  tokens: [a, b]
"""


def test_a_text_keeps_its_form_without_its_secrets() -> None:
    shown = redaction.text(DOCUMENT)
    for secret in ("Bearer", "abc,", "sk-123", "hf_abc", "line one", "line two", "hunter2", "abcdef"):
        assert secret not in shown
    spec = yaml.safe_load(shown)["spec"]
    assert spec["headers"] == {"Authorization": "***", "X-API-Key": "***", "Accept": "text"}
    assert (spec["api_key"], spec["hf_token"], spec["password"]) == ("***", "***", "***")
    kept = (spec["max_tokens"], spec["tokenizer"], spec["secret"], spec["token"], spec["tokens"])
    assert kept == (12, "gpt2", "${secret:NAME}", "", ["a", "b"])
    assert shown.startswith("# a note\n")


def test_data_loses_its_secrets_wherever_they_are() -> None:
    spec = {"a": [{"Authorization": "x", "max_new_tokens": 5}], "token": "${secret:T}", "api_key": 7, "b": "//u:p@h"}
    assert redaction.tree(spec) == {
        "a": [{"Authorization": "***", "max_new_tokens": 5}], "token": "${secret:T}", "api_key": 7, "b": "//***@h",
    }  # fmt: skip


@given(name=st.sampled_from(["token", "Authorization", "x-api-key", "db_password"]), value=st.text(min_size=1))
def test_no_way_of_writing_a_secret_gives_it_away(name: str, value: str) -> None:
    secret = f"S3CRET{value}"
    for style in (None, '"', "'", "|", ">"):
        text = yaml.safe_dump({"spec": {name: secret, "b": 1}}, default_style=style, allow_unicode=True)
        if "${" not in secret:
            assert "S3CRET" not in redaction.text(text)


@pytest.mark.parametrize(
    "text",
    [
        '{\t"a": "\\ud83d\\ude00",\n\t"token": "S3CRET",\t"b": 1}',
        '{"a": "\\\\ud83d", "token": "S3CRET", "b": 1}',
        "a: '\U0001f600 \u00e9'\ntoken: S3CRET\nb: 1\n",
        "\ufeffa: 1\ntoken: S3CRET\nb: 1\n",
        "a: 1\r\ntoken: S3CRET\r\nb: 1\r\n",
        "To\u212aen: S3CRET\nb: 1\n",  # Kelvin's sign, which is a K to a reader who ignores case
    ],
)
def test_only_the_secret_changes_however_a_text_is_written(text: str) -> None:
    assert redaction.text(text) in {text.replace("S3CRET", '"***"'), text.replace('"S3CRET"', '"***"')}


@pytest.mark.parametrize("text", ["", "no: secrets\n", "{", "token", "token:", "max_tokens: 1"])
def test_what_holds_no_secret_stays_as_it_is(text: str) -> None:
    assert redaction.text(text) == text


@pytest.mark.parametrize(
    "text", ["token: " + "[" * 50_000 + "]" * 50_000, "token: \ud800", "token: [", "token: a\ntoken: [b"]
)
def test_what_cannot_be_read_is_not_shown(text: str) -> None:
    assert redaction.text(text) == redaction.STARS


def test_a_word_is_found_wherever_a_piece_of_the_text_ends() -> None:
    for cut in range(-14, 15):
        text = "authorization: S3CRET\n"
        comment = "#" + "x" * (redaction._CHUNK - 2 - cut) + "\n"
        assert redaction.text(comment + text) == comment + text.replace("S3CRET", '"***"')


def test_many_secrets_are_hidden_in_time_that_grows_with_their_number() -> None:
    """To copy the text for each of them would take half a minute."""
    document = "".join(f"- {{token: S3CRET{number}, note: {'x' * 200}}}\n" for number in range(20_000))
    assert "S3CRET" not in redaction.text(document)


def test_a_large_document_is_read_in_time_that_grows_with_its_length() -> None:
    """It runs in the store's writer; a name of any length before the word would take minutes."""
    document = f"items: [{'x' * 2_000_000}]"
    assert redaction.text(document) == document
