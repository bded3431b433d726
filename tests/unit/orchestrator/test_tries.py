"""How often an address may fail to log in."""

from __future__ import annotations

import pytest

from tunefleet.errors import TooManyError
from tunefleet.orchestrator.access import login_throttle
from tunefleet.orchestrator.access.login_throttle import BURST, FORGIVE_EVERY_S, LoginThrottle


def _fail(known: LoginThrottle, address: str, now: float, times: int = BURST) -> None:
    for _ in range(times):
        known.begin(address, now)


def test_so_many_at_once_and_then_one_now_and_then() -> None:
    known = LoginThrottle()
    _fail(known, "192.0.2.1", 0.0)
    with pytest.raises(TooManyError) as refused:
        known.begin("192.0.2.1", 1.0)
    assert refused.value.retry_after_s == FORGIVE_EVERY_S - 1
    known.begin("192.0.2.2", 1.0)
    known.begin("192.0.2.1", FORGIVE_EVERY_S)
    with pytest.raises(TooManyError):
        known.begin("192.0.2.1", FORGIVE_EVERY_S)
    _fail(known, "192.0.2.1", FORGIVE_EVERY_S * (BURST + 2))


def test_who_gets_in_has_lost_no_try() -> None:
    known = LoginThrottle()
    for _ in range(5 * BURST):
        known.begin("192.0.2.1", 0.0)
        known.succeeded("192.0.2.1", 0.0)
    assert not known._failures


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2", True),
        ("", "192.0.2.1", False),
    ],
)
def test_addresses_of_one_network_count_as_one(one: str, other: str, same: bool) -> None:
    known = LoginThrottle()
    _fail(known, one, 0.0)
    if same:
        with pytest.raises(TooManyError):
            known.begin(other, 0.0)
    else:
        known.begin(other, 0.0)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_throttle, "_ADDRESSES", 3)
    known = LoginThrottle()
    for number in range(10):
        known.begin(f"192.0.2.{number}", 0.0)
    assert len(known._failures) == 3
