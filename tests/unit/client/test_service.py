"""A service that is asked again: the pause is logged with its reason and length."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from tunefleet.client.external.third_party_api import NotArrivedError, Patience, Reply, Service


@pytest.mark.parametrize(("verb", "failures"), [("get", 1), ("get", 2), ("delete", 2)])
async def test_each_pause_before_another_try_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, verb: str, failures: int
) -> None:
    caplog.set_level("INFO")
    left = failures

    async def send(self: Service, *given: Any, **more: Any) -> tuple[Reply, float | None]:
        nonlocal left
        left -= 1
        if left >= 0:
            raise NotArrivedError("Gradients cannot be reached: ConnectError.")
        return Reply(200), None

    monkeypatch.setattr(Service, "_send", send)
    service = Service("Gradients", "http://g", SecretStr("k"), patience=Patience(first_s=0.0, longest_s=0.0))
    assert (await getattr(service, verb)("/tasks")).good
    said = "Gradients cannot be reached: ConnectError. Retrying in 0.0 s, attempt"
    assert caplog.messages == [f"{said} {number}." for number in range(2, failures + 2)]
