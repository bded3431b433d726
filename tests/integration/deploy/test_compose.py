"""The compose files: by the specification's schema, and every command and variable by what reads it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from tests.integration.deploy.described import DEPLOY, SCRIPTS, composed, new_env, variables
from tests.integration.redis import secured
from tests.machine import machine_environment
from tunefleet.settings import ServerSettings, WorkerSettings

FILES = ("compose.yaml", "compose.gpu.yaml")


@pytest.mark.parametrize("name", FILES)
def test_it_follows_the_specification(name: str, missing: Callable[[str], None]) -> None:
    checker = Path(sys.executable).with_name("check-jsonschema")
    if not checker.exists():
        missing("check-jsonschema")
    command = [checker, "--builtin-schema", "vendor.compose-spec", str(DEPLOY / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_services_wait_for_each_other_stop_in_time_and_come_back() -> None:
    services = composed("compose.yaml")["services"]
    assert services.keys() == {"postgres", "redis", "server", "worker"}
    for name, service in services.items():
        assert service["restart"] == "unless-stopped", name
        assert "stop_grace_period" in service, name
        assert service.get("depends_on", {}).keys() <= services.keys()
        assert {on["condition"] for on in service.get("depends_on", {}).values()} <= {"service_healthy"}
        image = service["image"]
        assert "build" in service or re.search(r":\d", image), f"{image} has no version"
        for mount in service.get("volumes", ()):
            source, *_ = mount.split(":")
            assert (
                (DEPLOY / source).is_dir() if source.startswith(".") else source in composed("compose.yaml")["volumes"]
            )
    assert services["worker"]["stop_grace_period"] == "2m", "jobs save"
    assert services["server"]["ports"] == ["${TUNEFLEET_LISTEN:-127.0.0.1}:8000:8000"], "nobody else, unless it is said"
    assert "ports" not in services["postgres"] | services["redis"] | services["worker"]


def test_builds_name_what_is_there() -> None:
    for name in FILES:
        for service in composed(name)["services"].values():
            if build := service.get("build"):
                dockerfile = (DEPLOY / build["context"] / build["dockerfile"]).resolve()
                assert f" AS {build['target']}\n" in dockerfile.read_text()


@pytest.mark.parametrize(("service", "cls"), [("server", ServerSettings), ("worker", WorkerSettings)])
def test_variables_are_those_that_the_process_reads(
    service: str, cls: type[ServerSettings] | type[WorkerSettings]
) -> None:
    given = {key for name in FILES for key in composed(name)["services"].get(service, {}).get("environment", {})}
    assert given
    assert given <= variables(cls), given - variables(cls)


def test_no_password_is_shipped_and_none_may_be_missing() -> None:
    text = "".join((DEPLOY / name).read_text() for name in FILES)
    made = new_env()
    secrets = {name for name in made if name.endswith("PASSWORD")}
    assert secrets == set(re.findall(r"\$\{(\w+):\?", text)), "each that is asked for is made"
    assert {name for name in re.findall(r"\$\{(\w*PASSWORD)", text)} == secrets
    values = [made[name] for name in secrets]
    assert len(set(values)) == len(values) == 3
    assert all(re.fullmatch(r"[0-9a-f]{48}", value) for value in values)
    assert made.keys() - secrets <= set(re.findall(r"\$\{(\w+):-", text)), "the others have an effect"
    for line in text.splitlines():
        if "PASSWORD:" in line or ("://" in line and "@" in line):
            assert "PASSWORD" in line.partition("${")[2], f"a password stands there: {line}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_scripts_are_those_of_any_shell(name: str) -> None:
    subprocess.run(["sh", "-n", str(DEPLOY / name)], check=True)
    assert (DEPLOY / name).read_text().startswith("#!/bin/sh\n")


@pytest.mark.proof
def test_its_redis_starts_as_it_says_and_lets_the_two_users_in(
    tmp_path: Path, free_port: Callable[[], int], missing: Callable[[str], None]
) -> None:
    program, shell = secured.binary(), shutil.which("redis-cli")
    if program is None or shell is None:
        missing("a redis-server, 7 or newer, and redis-cli (scripts/redis.sh)")
    service, made, port = composed("compose.yaml")["services"]["redis"], new_env(), free_port()
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "redis-server"
    wrapper.write_text(f'#!/bin/bash\nexec -a redis-server {program} --port {port} --bind 127.0.0.1 "$@"\n')
    wrapper.chmod(0o755)
    run, minus_c, script = service["command"]
    script = script.replace("/etc/tunefleet", str(DEPLOY / "redis")).replace("/run/fleet", str(tmp_path))
    env = machine_environment(PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}", **made)
    process = subprocess.Popen([run, minus_c, script], env=env, stdout=subprocess.DEVNULL)
    try:
        healthy = service["healthcheck"]["test"][1].replace("redis-cli", f"{shell} -p {port}")
        deadline = time.monotonic() + 60
        while subprocess.run(["sh", "-c", healthy], env=env, check=False, capture_output=True).returncode:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for user in ("server", "worker"):
            password = made[f"REDIS_{user.upper()}_PASSWORD"]
            with Redis.from_url(f"redis://{user}:{password}@127.0.0.1:{port}/0", protocol=2) as client:
                assert client.ping()
        assert (tmp_path / "users.acl").stat().st_mode & 0o077 == 0
        assert not any(
            made[f"REDIS_{user}_PASSWORD"] in (tmp_path / "users.acl").read_text() for user in ("SERVER", "WORKER")
        )
    finally:
        process.terminate()
        process.wait(30)
    assert subprocess.run(["sh", "-c", healthy], env=env, check=False, capture_output=True).returncode != 0
    refused = subprocess.run(
        [run, minus_c, script], env=machine_environment(PATH=env["PATH"]), capture_output=True, text=True, check=False
    )
    assert refused.returncode != 0, "no password, no Redis"
    assert "must have 16 characters" in refused.stderr
