"""Certificates of an authority that no system knows, and a server behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from tests.fakes.middle import middle
from tests.integration.api.conftest import start  # noqa: F401 - a fixture
from tests.integration.api.support import Running
from tunefleet.client import trust


@dataclass(frozen=True)
class Papers:
    """Files of certificates.

    Args:
        authority: What has signed the others.
        good: Key and certificate of localhost and the loopback addresses.
        expired: The same, long over.
        foreign: Of another host.
    """

    authority: Path
    good: Path
    expired: Path
    foreign: Path


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    folder = tmp_path_factory.mktemp("papers")
    made = Papers(*(folder / f"{name}.pem" for name in ("authority", "good", "expired", "foreign")))
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(made.authority))
    names = ("localhost", "127.0.0.1", "127.0.0.2")
    authority.issue_cert(*names).private_key_and_cert_chain_pem.write_to_path(str(made.good))
    over = authority.issue_cert(*names, not_after=datetime(2020, 1, 1, tzinfo=UTC))
    over.private_key_and_cert_chain_pem.write_to_path(str(made.expired))
    authority.issue_cert("elsewhere.example").private_key_and_cert_chain_pem.write_to_path(str(made.foreign))
    return made


@pytest.fixture(scope="module")
def running(
    start: Callable[..., Running],  # noqa: F811 - the fixture
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("data"))
    yield running
    running.stop()
    running.core.close()


@pytest.fixture
def behind_tls(running: Running, papers: Papers) -> Iterator[int]:
    """The port of the server's TLS end, good on every loopback address."""
    target = running.url.removeprefix("http://")
    with middle(listen="0.0.0.0:0", target=target, certificate=str(papers.good)) as end:
        yield end.port


@pytest.fixture(autouse=True)
def no_choice() -> Iterator[None]:
    """Let no test's choice of certificates be another's."""
    yield
    trust._chosen.clear()
