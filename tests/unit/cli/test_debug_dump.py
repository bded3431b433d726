"""`tunefleet debug-dump`: what is in the archive, and that no secret is."""

from __future__ import annotations

import pytest

from tunefleet.cli.server.dump_redaction import Redactor


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Authorization: Bearer abcd1234efgh", "Authorization: Bearer ***"),
        ('"hf_token": "abcdefgh"', '"hf_token": "***"'),
        ("password=abcdefgh&user=me", "password=***&user=me"),
        ("tokens_per_s: 1234.5", "tokens_per_s: 1234.5"),
        ("api_key: ${secret:HUB}", "api_key: ${secret:HUB}"),
        ("postgresql://u:abcdefgh@h/db", "postgresql://**********@h/db"),
    ],
)
def test_what_goes_by_a_secrets_name_or_form_is_hidden(line: str, shown: str) -> None:
    assert Redactor({}).text(line) == shown
