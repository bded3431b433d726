"""Addresses that a user gave: what may be reached, where headers go, and which names mean one server."""

from __future__ import annotations

import pytest

from tunefleet.client.external.ssrf_guard import SsrfGuard, same_server, shown
from tunefleet.errors import ForbiddenError, UnreachableError


@pytest.mark.parametrize("url", ["ftp://example.org/x", "file:///etc/passwd", "//no-scheme", "http://"], ids=str)
def test_only_http_is_spoken(url: str) -> None:
    with pytest.raises(ForbiddenError):
        SsrfGuard(("0.0.0.0/0",)).send("POST", url)


@pytest.mark.parametrize(
    "address",
    [
        *("64:ff9b::7f00:1", "64:ff9b:1::808:808", "2002:7f00:1::", "2002:a00:1::1", "fec0::1", "::127.0.0.1"),
        *("::10.0.0.1", "::1", "::", "::ffff:10.0.0.1", "fd00::1", "ff02::1", "169.254.1.1"),
    ],
    ids=str,
)
def test_no_way_of_writing_an_inner_address_makes_it_public(address: str) -> None:
    with pytest.raises(ForbiddenError, match="not a public address") as refused:
        SsrfGuard().check(address, 80)
    assert "TUNEFLEET_URL_ALLOW" in (refused.value.hint or "")
    assert str(refused.value).count(address) == 1


def test_a_refusal_says_what_a_name_stands_for_and_whose_setting_it_is() -> None:
    for who in ("worker", "server"):
        with pytest.raises(ForbiddenError) as refused:
            SsrfGuard(who=who).check("localhost", 80)
        assert refused.value.message in {
            f"localhost resolves to {address}, which is not a public address." for address in ("127.0.0.1", "::1")
        }
        assert refused.value.hint == (f"To allow it, add it to TUNEFLEET_URL_ALLOW of the {who} and restart the {who}.")


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888", "64:ff9b::808:808", "2002:808:808::1"], ids=str)
def test_what_leads_to_a_public_address_may_be_reached(address: str) -> None:
    assert str(SsrfGuard().check(address, 80)) == address


def test_what_is_allowed_may_be_reached_however_it_is_written_but_metadata_never() -> None:
    everything = SsrfGuard(("0.0.0.0/0", "::/0"))
    metadata = ("168.63.129.16", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::", "fd00:ec2::254")
    for address in ("10.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "fec0::1", "::1"):
        assert str(everything.check(address, 80)) == address
    assert str(SsrfGuard(("10.0.0.0/8",)).check("64:ff9b::a00:1", 80)) == "64:ff9b::a00:1"
    for reach in (everything, SsrfGuard((*metadata, "169.254.169.254")), SsrfGuard()):
        for address in (*metadata, "169.254.169.254"):
            with pytest.raises(ForbiddenError, match="access is never allowed") as refused:
                reach.check(address, 80)
            assert refused.value.hint is None, "no setting helps"


def test_a_host_that_is_not_there_is_unreachable() -> None:
    with pytest.raises(UnreachableError, match="Cannot resolve the host"):
        SsrfGuard().send("GET", "http://no-such-host.invalid/")


def test_one_server_has_many_names() -> None:
    assert same_server("http://127.0.0.1:8000/api/v1/results", "http://localhost:8000")
    assert same_server("https://a.invalid/x", "https://a.invalid:443")
    assert not same_server("http://127.0.0.1:8000", "http://127.0.0.1:8001")
    assert not same_server("http://a.invalid", "https://a.invalid")
    assert not same_server("no address", "http://a.invalid")


def test_what_is_shown_of_an_address_is_not_secret() -> None:
    assert shown("https://user:pass@host:1/a?signature=x") == "https://host:1/a"
