"""Two servers that speak TLS and share a Redis: workers of both links go on when the one that leads is killed."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from tests.integration.api.support import until
from tests.integration.redis.process import RedisProcess
from tests.integration.servers.trio import QUICK, Trio, named, submit

ONLY = QUICK.replace("  taskType: echo\n", "  taskType: echo\n  resources: {tags: [NAME]}\n")


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_workers_over_tls_and_over_redis_go_on_without_the_leader(
    trio: Trio, tmp_path: Path, redis_server: Callable[..., RedisProcess]
) -> None:
    authority, paper, trusted = trustme.CA(), tmp_path / "server.pem", tmp_path / "ca.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(paper))
    authority.cert_pem.write_to_path(str(trusted))
    trio.authority = ssl.create_default_context(cafile=str(trusted))
    trio.settings = {"TUNEFLEET_CA_FILE": str(trusted)}
    redis = redis_server().url
    tls = {"TUNEFLEET_TLS_CERT_FILE": str(paper), "TUNEFLEET_TLS_KEY_FILE": str(paper), "REDIS_URL": redis}
    trio.start(0, 1, **tls)
    through = trio.follower()
    leader = 1 - through
    trio.work(through, "far")
    trio.work(through, "near", REDIS_URL=redis, TUNEFLEET_WORKER_KEY="")
    with trio.client(leader) as first, trio.client(through) as client:
        assert [each.get("/healthz").json()["role"] for each in (first, client)] == ["leads", "follows"]

        def links() -> dict[str, str]:
            found = client.get("/workers").json()["items"]
            return {each["id"]: each["capabilities"]["link"] for each in found if each["status"] == "online"}

        until(lambda: links() == {"far": "http", "near": "redis"})

        def run(what: str) -> list[str]:
            return [submit(client, named(ONLY, name)) for name in ("far", "near") for _ in what]

        def over(flows: list[str]) -> bool:
            return all(client.get(f"/workflows/{each}").json()["status"] == "completed" for each in flows)

        before = run("a")
        until(lambda: over(before))
        epoch = trio.epoch()
        trio.processes[leader].kill()
        trio.processes[leader].wait()
        meanwhile = run("bc")
        until(lambda: trio.epoch() > epoch)
        until(lambda: over(meanwhile))
    assert trio.ran() == len(before) + len(meanwhile), "each ran once"
