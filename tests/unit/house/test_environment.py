"""The environment is read in one place, so that every variable can be found, described and checked."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Literal

import pytest
from pydantic import AliasChoices
from pydantic_settings import BaseSettings

from scripts import write_reference
from tests.machine import machine_environment
from tunefleet import settings
from tunefleet.errors import MachineError
from tunefleet.unsupported import UNSUPPORTED_VARIABLES

READERS = {"settings/environment.py"}
MOST_READERS = 1


def _reads_environment(path: Path) -> bool:
    """Whether a module looks a variable up; setting one for a library or a child is not reading."""
    text = path.read_text(encoding="utf-8")
    if "environ" not in text and "getenv" not in text:
        return False
    tree = ast.parse(text)
    written = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
    }
    written |= {
        node.func.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"update", "pop", "clear", "setdefault"}
    }
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in {"environ", "getenv"}
        and isinstance(node.value, ast.Name)
        and node not in written
        for node in ast.walk(tree)
    )


def test_only_settings_and_few_modules_of_trainer_control_read_the_environment(repository: Path) -> None:
    package = repository / "src/tunefleet"
    readers = {str(path.relative_to(package)) for path in package.rglob("*.py") if _reads_environment(path)}
    attached = {name for name in readers if name.startswith("trainer_control/")}
    # A trainer process sets variables for the libraries that it is about to import.
    programs = {name for name in readers if name.startswith("workloads/")}
    assert readers - attached - programs <= READERS
    assert len(attached) <= MOST_READERS


def test_programs_read_no_variable_of_ours(repository: Path) -> None:
    names = {name for _, own in write_reference.variables() for each in own for name in (each.name, *each.aliases)}
    names -= {"HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN"}  # theirs: the libraries in the process read them too
    names -= {"TUNEFLEET_LLAMA_CPP"}  # read by the worker, which hands it on
    names -= {"TUNEFLEET_CAMPAIGN_CPU"}  # a campaign's; named where it is the way out
    names -= {"TUNEFLEET_NODE", "TUNEFLEET_NODES_IDLE_S"}  # written for the workers that Ray's nodes start
    names -= {
        "TUNEFLEET_ALLOW_CODE",
        "TUNEFLEET_WORKER_TAGS",
    }  # theirs: demand is asked for workers that are started so
    names -= {"HF_USERNAME"}  # of the container at RunPod, where none of our settings are
    for path in (repository / "src/tunefleet/workloads").rglob("*.py"):
        assert not names & set(re.findall(r"[A-Z][A-Z_]{3,}", path.read_text(encoding="utf-8"))), path


def test_every_variable_is_described() -> None:
    own_ones = [each for _, own in write_reference.variables() for each in own]
    described = {name for each in own_ones for name in (each.name, *each.aliases)}
    found = [cls for cls in vars(settings).values() if isinstance(cls, type) and issubclass(cls, BaseSettings)]
    aliases = [field.validation_alias for cls in found for field in cls.model_fields.values()]
    assert {name for alias in aliases if isinstance(alias, AliasChoices) for name in alias.choices} == described


def test_a_bad_value_names_variable_and_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFLEET_PORT", "eighty")
    with pytest.raises(MachineError, match=r"TUNEFLEET_PORT must be an integer, not 'eighty'"):
        settings.load(settings.ServerSettings)


def test_an_option_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("TUNEFLEET_PORT=1\nTUNEFLEET_HOST=\nWORKER_TAGS=a, b\n")
    assert settings.load(settings.ServerSettings).port == 1
    assert settings.load(settings.ServerSettings).host == "127.0.0.1", "an empty value means the default"
    assert settings.load(settings.WorkerSettings).tags == ("a", "b")
    monkeypatch.setenv("TUNEFLEET_PORT", "2")
    assert settings.load(settings.ServerSettings).port == 2
    assert settings.load(settings.ServerSettings, port=3, host=None).port == 3


def test_the_data_folder_goes_with_home_unless_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNEFLEET_HOME")
    assert settings.load(settings.ServerSettings).data_dir == Path.home() / ".tunefleet" / "data"
    monkeypatch.setenv("TUNEFLEET_HOME", str(tmp_path / "home"))
    assert settings.load(settings.ServerSettings).data_dir == tmp_path / "home" / "data"
    monkeypatch.setenv("TUNEFLEET_DATA", "~/elsewhere")
    assert settings.load(settings.ServerSettings).data_dir == Path.home() / "elsewhere"
    assert settings.load(settings.ServerSettings, data=tmp_path).data_dir == tmp_path


def test_a_child_inherits_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TUNEFLEET_WORKER_KEY", "REDIS_URL", "TUNEFLEET_DATABASE_URL", "TUNEFLEET_SMTP_URL"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("SOMETHING", "else")
    inherited = settings.inherited_environment("SOMETHING")
    assert "secret" not in inherited.values()
    assert "SOMETHING" not in inherited
    assert "PATH" in inherited


def test_somebody_elses_code_is_given_no_credential() -> None:
    given = {
        "HF_TOKEN": "a", "WANDB_API_KEY": "b", "PGPASSWORD": "c", "PGPASSFILE": "d", "github_pat": "e",
        "SENTRY_DSN": "f", "AWS_PROFILE": "g", "DATABASE_URL": "postgres://me:secret@db/x", "SSH_AUTH_SOCK": "h",
        "APP_SECRET": "i",
    }  # fmt: skip
    plain = {"PATH": "/bin", "HOME": "/srv", "HTTP_PROXY": "http://proxy:3128", "TOKENIZERS_PARALLELISM": "false"}
    assert settings.without_credentials(given | plain) == plain


def test_a_reduced_environment_of_a_test_keeps_what_the_network_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    network = {"https_proxy": "a", "NO_PROXY": "b", "SSL_CERT_FILE": "c", "NODE_EXTRA_CA_CERTS": "d"}
    indexes = {"npm_config_registry": "e", "NPM_CONFIG_CAFILE": "f", "PIP_INDEX_URL": "g", "UV_INDEX_URL": "h"}
    for name, value in {**network, **indexes, "HF_TOKEN": "i", "TUNEFLEET_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    reduced = machine_environment(HOME="/srv")
    assert network.items() | indexes.items() | {"HOME": "/srv"}.items() <= reduced.items()
    assert "PATH" in reduced
    assert not {"HF_TOKEN", "TUNEFLEET_PORT"} & reduced.keys()


def test_no_secret_is_shown() -> None:
    shown = repr(settings.load(settings.WorkerSettings, key="tf_secret"))
    assert "tf_secret" not in shown
    address = "postgresql://fleet:tf_secret@db/fleet"
    assert "tf_secret" not in repr(settings.load(settings.ServerSettings, database_url=address))


@pytest.mark.parametrize(
    ("variable", "value", "field", "expected"),
    [
        ("RESULTS_DIR", "/data/results", "results_dir", Path("/data/results")),
        ("WORKER_ID", "gpu-3", "worker_id", "gpu-3"),
        ("WORKER_TAGS", "a100, lab-3", "tags", ("a100", "lab-3")),
        ("ORCHESTRATOR_BASE_URL", "http://host:9000", "server_url", "http://host:9000"),
        ("LOG_LEVEL", "DEBUG", "log_level", "DEBUG"),
        ("TASK_TOPIC", "jobs", "topic", "jobs"),
        ("HEARTBEAT_INTERVAL_SEC", "7.5", "heartbeat_interval_s", 7.5),
        ("WORKER_COST_PER_HOUR", "0", "cost_per_hour", 0.0),
        ("LOG_FILE", "/var/log/worker.log", "log_file", Path("/var/log/worker.log")),
        ("LOG_MAX_BYTES", "100", "log_max_bytes", 100),
        ("LOG_BACKUP_COUNT", "2", "log_backup_count", 2),
    ],
)
def test_a_variable_of_the_worker_guide_keeps_its_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, field: str, expected: object
) -> None:
    monkeypatch.setenv(variable, value)
    assert getattr(settings.load(settings.WorkerSettings), field) == expected


def test_a_default_of_the_worker_guide_is_kept() -> None:
    worker = settings.load(settings.WorkerSettings)
    assert (worker.results_dir, worker.tags, worker.log_level) == (Path("./results_workers"), (), "INFO")
    assert (worker.topic, worker.heartbeat_interval_s, worker.cost_per_hour) == ("tasks", 30.0, 1.0)
    assert (worker.log_file, worker.log_max_bytes, worker.log_backup_count) == (None, 5242880, 5)


def test_one_token_is_the_servers_and_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_TOKEN", "dev-token")
    for found in (settings.load(settings.WorkerSettings).key, settings.load(settings.ServerSettings).shared_token):
        assert found is not None
        assert found.get_secret_value() == "dev-token"
    monkeypatch.setenv("TUNEFLEET_WORKER_KEY", "tf_own")
    own = settings.load(settings.WorkerSettings).key
    assert own is not None
    assert own.get_secret_value() == "tf_own"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"PORT": "1"}, ("127.0.0.1", 1)),
        ({"PORT": "1", "HOST_APP_PORT": "2", "HOST_APP_HOST": "0.0.0.0"}, ("0.0.0.0", 2)),
        ({"HOST_APP_PORT": "2", "TUNEFLEET_PORT": "3"}, ("127.0.0.1", 3)),
    ],
    ids=["PORT", "HOST_APP", "TUNEFLEET"],
)
def test_where_a_server_listens_has_the_contracts_names(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: tuple[str, int]
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    server = settings.load(settings.ServerSettings)
    assert (server.host, server.port) == expected


def test_a_topic_may_not_be_what_workers_have_keys_under() -> None:
    for name in ("worker", "workers", "a:b", ""):
        with pytest.raises(MachineError, match="topic"):
            settings.load(settings.WorkerSettings, topic=name)


def test_a_variable_that_has_no_effect_is_named_with_what_holds_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert settings.unsupported("worker") == []
    (tmp_path / ".env").write_text("VLLM_MODEL=llama\n")
    monkeypatch.setenv("WORKER_DEATH_GRACE_SEC", "60")
    (sentence,) = settings.unsupported("worker")
    assert sentence == "VLLM_MODEL is not supported and has no effect: set the model in the workflow file."
    (sentence,) = settings.unsupported("server")
    assert "TUNEFLEET_LOST_AFTER_S" in sentence


def _variable_rows(page: str) -> dict[str, set[str]]:
    """Heading → the variables that its rows are about."""
    found: dict[str, set[str]] = {}
    heading = ""
    for line in page.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif re.match(r"\| variables? ", line):
            item = line.split(" | ")[0]
            found.setdefault(heading, set()).update(re.findall(r"`([A-Z_][A-Z0-9_]+)`", item))
    return found


def _names(cls: type[BaseSettings]) -> set[str]:
    aliases = [field.validation_alias for field in cls.model_fields.values()]
    return {str(name) for alias in aliases if isinstance(alias, AliasChoices) for name in alias.choices}


def test_each_variable_of_the_worker_guide_works_or_start_up_names_it(repository: Path) -> None:
    page = (repository / "docs/reference/compatibility.md").read_text(encoding="utf-8")
    guide = page.partition("\n## Worker guide")[2].partition("\n## ")[0]
    worker = _names(settings.WorkerSettings) | set(UNSUPPORTED_VARIABLES["worker"])
    server = _names(settings.ServerSettings) | set(UNSUPPORTED_VARIABLES["server"])
    rows = _variable_rows(guide)
    assert rows["The worker's variables"] - worker == set()
    assert rows["The server's variables"] - server == set()
    assert set().union(*rows.values()) - worker - server == set()
    unheeded = {name for names in UNSUPPORTED_VARIABLES.values() for name in names}
    assert unheeded - set().union(*rows.values()) == set(), "has no row"


@pytest.mark.parametrize("process", ["server", "worker"])
def test_no_variable_that_is_heeded_is_said_to_have_no_effect(process: Literal["server", "worker"]) -> None:
    heeded = _names({"server": settings.ServerSettings, "worker": settings.WorkerSettings}[process])
    assert heeded & set(UNSUPPORTED_VARIABLES[process]) == set()
    said = re.findall(r"\b[A-Z]+_[A-Z_]+\b", " ".join(UNSUPPORTED_VARIABLES[process].values()))
    assert set(said) - _names(settings.ServerSettings) - _names(settings.WorkerSettings) == set(), "leads nowhere"
