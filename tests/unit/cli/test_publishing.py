"""Places that nothing can be published to are refused with what is wrong with them."""

from __future__ import annotations

import pytest

from tunefleet.errors import InputError
from tunefleet.integrations.publishing.targets import PublishOptions, target
from tunefleet.settings import PublishSettings


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("s3://b/x", "s3://b/x is not a valid bucket URL.", "has 3 to 63 characters"),
        ("s3://Mine/x", "s3://Mine/x is not a valid bucket URL.", "lower-case letters"),
        ("ftp://host/x", "ftp://host/x is not a publishing target.", "Use hf://ORG/NAME"),
    ],
)
def test_what_is_no_place_is_refused_with_why(text: str, said: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        target(text, PublishOptions(), PublishSettings())
    assert caught.value.message == said
    assert hint in (caught.value.hint or "")
