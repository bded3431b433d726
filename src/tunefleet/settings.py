"""Frozen settings, one class per process; the only module that reads `os.environ` (but one in `attach`).

Names from the documents that we stay compatible with are kept exactly; ours start with `TUNEFLEET_`. Each process
builds its settings once, in its `main`, and passes them down. `.env` is read there too, and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, BeforeValidator, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tunefleet.errors import MachineError

S = TypeVar("S", bound="ProcessSettings")


def _comma_list(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


CommaList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_comma_list)]


def _variable(*names: str) -> AliasChoices:
    return AliasChoices(*names)


class ProcessSettings(BaseSettings):
    """What every process has."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        case_sensitive=True,
        env_file=".env",
        env_file_encoding="utf-8",
        env_ignore_empty=True,
    )

    home: Path = Field(default=Path("~/.tunefleet"), validation_alias=_variable("TUNEFLEET_HOME"))
    """Where this user's client file and job endpoints lie."""
    jobs_dir: Path | None = Field(default=None, validation_alias=_variable("TUNEFLEET_JOBS_DIR"))
    """Where live jobs can be found; default: `jobs` in `TUNEFLEET_HOME`."""
    log_level: str = Field(default="INFO", validation_alias=_variable("LOG_LEVEL"))
    """What a process logs: `DEBUG`, `INFO`, `WARNING` or `ERROR`."""

    @property
    def home_dir(self) -> Path:
        """`home` with `~` resolved."""
        return self.home.expanduser()

    @property
    def endpoints_dir(self) -> Path:
        """Where live jobs can be found: one folder with an `endpoint.json` each."""
        return (self.jobs_dir or self.home / "jobs").expanduser()

    @property
    def client_file(self) -> Path:
        """The URL and key that the CLI and the SDK use when nothing else is given."""
        return self.home_dir / "client.json"


class ClientSettings(ProcessSettings):
    """Settings of the CLI and the SDK."""

    url: str | None = Field(default=None, validation_alias=_variable("TUNEFLEET_URL"))
    """The server that CLI and SDK speak to; default: the one that `tunefleet up` wrote into the client file."""
    key: SecretStr | None = Field(default=None, validation_alias=_variable("TUNEFLEET_KEY"))
    """The API key for that server; default: the one in the client file."""
    debug: bool = Field(default=False, validation_alias=_variable("TUNEFLEET_DEBUG"))
    """Whether the command line prints the traceback of an error."""
    hub_offline: bool = Field(default=False, validation_alias=_variable("HF_HUB_OFFLINE"))
    """Hugging Face's own switch: nothing is fetched from its hub; `tunefleet doctor` says how it stands."""


class ServerSettings(ProcessSettings):
    """Settings of the server."""

    data: Path = Field(default=Path("~/.tunefleet/data"), validation_alias=_variable("TUNEFLEET_DATA"))
    """The server's folder: database, artifacts, first keys. One server at a time."""
    host: str = Field(default="127.0.0.1", validation_alias=_variable("TUNEFLEET_HOST"))
    """The address to listen on; anything but loopback makes the server reachable by others, who need a key."""
    port: int = Field(default=8000, ge=0, le=65535, validation_alias=_variable("TUNEFLEET_PORT"))
    """The port to listen on; 0 takes a free one."""
    database_url: str | None = Field(default=None, validation_alias=_variable("TUNEFLEET_DATABASE_URL"))
    """Where the truth is kept; default: an SQLite file in the data folder."""
    synchronous: str = Field(default="FULL", pattern="^(FULL|NORMAL)$", validation_alias=_variable("TUNEFLEET_SYNC"))
    """SQLite's `synchronous`: `FULL` survives a power cut, `NORMAL` a killed process."""
    lost_after_s: float = Field(default=30.0, ge=1.0, validation_alias=_variable("TUNEFLEET_LOST_AFTER_S"))
    """Silence after which a worker is given up and its tasks are placed anew."""
    accept_within_s: float = Field(default=10.0, gt=0, validation_alias=_variable("TUNEFLEET_ACCEPT_WITHIN_S"))
    """How long a worker may take to accept an offer before the task is offered again."""
    max_body_bytes: int = Field(default=8 << 20, gt=0, validation_alias=_variable("TUNEFLEET_MAX_BODY_BYTES"))
    """Limit for a JSON or YAML body; files are streamed and have the next limit."""
    max_upload_bytes: int = Field(default=1 << 40, gt=0, validation_alias=_variable("TUNEFLEET_MAX_UPLOAD_BYTES"))
    """Limit for one uploaded file."""
    public_base_url: str | None = Field(default=None, validation_alias=_variable("PUBLIC_BASE_URL"))
    """The URL under which others reach the server; used for links that it hands out."""
    cors_origins: CommaList = Field(default=(), validation_alias=_variable("TUNEFLEET_CORS_ORIGINS"))
    """Web origins that may call the API from a browser, separated by commas."""

    @property
    def data_dir(self) -> Path:
        """`data` with `~` resolved."""
        return self.data.expanduser()


class SharedGpuSettings(ProcessSettings):
    """What a process needs that runs jobs on GPUs which it shares with people."""

    yielding: Literal["off", "claim", "pause"] = Field(default="claim", validation_alias=_variable("TUNEFLEET_YIELD"))
    """When somebody else uses a GPU: `off`: never mind; `claim`: begin no job on it; `pause`: also pause a job that
    runs on it, and go on when they have gone."""
    yield_idle_s: float = Field(default=120.0, gt=0, validation_alias=_variable("TUNEFLEET_YIELD_IDLE_S"))
    """How long a GPU that somebody else used must be quiet before a job begins or goes on there."""


class WorkerSettings(SharedGpuSettings):
    """Settings of a worker."""

    server_url: str = Field(default="http://127.0.0.1:8000", validation_alias=_variable("ORCHESTRATOR_BASE_URL"))
    """The server that the worker takes its tasks from."""
    key: SecretStr | None = Field(default=None, validation_alias=_variable("TUNEFLEET_WORKER_KEY"))
    """The worker's API key (role `worker`)."""
    results_dir: Path = Field(default=Path("./results_workers"), validation_alias=_variable("RESULTS_DIR"))
    """The worker's folder: its identity, and one folder for each task."""
    worker_id: str | None = Field(default=None, validation_alias=_variable("WORKER_ID"))
    """The worker's name; default: made once and kept in the results folder."""
    tags: CommaList = Field(default=(), validation_alias=_variable("WORKER_TAGS"))
    """Tags that a task may ask for, separated by commas."""
    job_slots: int = Field(default=1, ge=0, validation_alias=_variable("TUNEFLEET_JOB_SLOTS"))
    """Trainings at a time."""
    light_slots: int = Field(default=32, ge=0, validation_alias=_variable("TUNEFLEET_LIGHT_SLOTS"))
    """Tasks at a time of kinds that need no process of their own, such as `echo`."""
    warm_start: bool = Field(default=True, validation_alias=_variable("TUNEFLEET_WARM_START"))
    """Keep the training libraries imported in a fork server, so that a job starts in under a second."""
    warm_idle_s: float = Field(default=1800.0, gt=0, validation_alias=_variable("TUNEFLEET_WARM_IDLE_S"))
    """How long an unused warm process is kept."""
    torch_threads: int | None = Field(default=None, ge=1, validation_alias=_variable("TUNEFLEET_TORCH_THREADS"))
    """CPU threads of a training; default: the cores of the machine, shared among its slots."""
    visible_gpus: str | None = Field(default=None, validation_alias=_variable("CUDA_VISIBLE_DEVICES"))
    """The GPUs that the worker may use, by index or UUID; default: all."""
    allow_code: bool = Field(default=False, validation_alias=_variable("TUNEFLEET_ALLOW_CODE"))
    """Whether code in a document (`trust_remote_code`, for now) may run on this worker."""


class AgentSettings(SharedGpuSettings):
    """Settings of the agent of one machine; the names are the document's, ours are `AGENT_KEY` and `TUNEFLEET_…`."""

    backend_url: str = Field(default="http://localhost:3000", validation_alias=_variable("BACKEND_URL"))
    """Who is told of metrics, status and logs, and polled for jobs; `none` tells nobody."""
    api_key: SecretStr | None = Field(default=None, validation_alias=_variable("API_KEY"))
    """The key for polling the backend; without one nothing is polled."""
    agent_id: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9_.-]{10,80}$", validation_alias=_variable("AGENT_ID")
    )
    """The agent's name for the backend, 10 to 80 letters, digits, `_`, `-`, `.`; default: made once and kept in
    `agent_id` in `TUNEFLEET_HOME`."""
    poll_enabled: bool = Field(default=True, validation_alias=_variable("POLL_ENABLED"))
    """Whether the backend is polled for jobs, if there is a key."""
    poll_interval_s: float = Field(default=10.0, gt=0, validation_alias=_variable("POLL_INTERVAL_SECONDS"))
    """Seconds between two polls of a backend that does not hold them; unless it is set, the backend's word counts."""
    host: str = Field(default="127.0.0.1", validation_alias=_variable("HOST"))
    """The address to listen on; anything but loopback needs `AGENT_KEY`."""
    port: int | None = Field(default=None, ge=0, le=65535, validation_alias=_variable("PORT"))
    """The port to listen on; default 8000, or 8001 when that is taken."""
    key: SecretStr | None = Field(default=None, validation_alias=_variable("AGENT_KEY"))
    """The key that requests must carry, as bearer or `X-API-Key`; without one only local processes of the same user
    are answered."""
    models_dir: Path = Field(default=Path("./models"), validation_alias=_variable("MODELS_DIR"))
    """Where a model's bare name is looked for; a local model elsewhere is refused."""
    datasets_dir: Path = Field(default=Path("./datasets"), validation_alias=_variable("DATASETS_DIR"))
    """Where a dataset's bare name is looked for, and where downloads go; a local dataset elsewhere is refused."""
    checkpoints_dir: Path = Field(default=Path("./checkpoints"), validation_alias=_variable("CHECKPOINTS_DIR"))
    """One job folder for each job."""
    logs_dir: Path = Field(default=Path("./logs"), validation_alias=_variable("LOGS_DIR"))
    """Where `agent.log` lies."""
    gpu_memory_fraction: float = Field(default=0.9, gt=0, le=1, validation_alias=_variable("GPU_MEMORY_FRACTION"))
    """Part of a GPU's memory that a training may take; one that is estimated to need more is refused."""
    mixed_precision: bool = Field(default=True, validation_alias=_variable("ENABLE_MIXED_PRECISION"))
    """Train in bf16, or in fp16 on a GPU without it; off: in float32."""
    max_jobs: int = Field(default=1, ge=1, validation_alias=_variable("MAX_CONCURRENT_JOBS"))
    """Trainings at a time; further ones wait."""
    checkpoint_interval_steps: int = Field(default=500, ge=1, validation_alias=_variable("CHECKPOINT_INTERVAL_STEPS"))
    """Steps between two checkpoints, where a job does not say."""
    metrics_interval_steps: int = Field(default=10, ge=1, validation_alias=_variable("METRICS_REPORT_INTERVAL_STEPS"))
    """Steps between two points of the series, where a job does not say; each point is reported."""
    gpu_interval_s: float = Field(default=5.0, gt=0, validation_alias=_variable("GPU_MONITORING_INTERVAL_SECONDS"))
    """Seconds between two looks at the GPUs' load."""
    heartbeat_interval_s: float = Field(default=30.0, gt=0, validation_alias=_variable("HEARTBEAT_INTERVAL_SECONDS"))
    """Seconds between two heartbeats, and between two progress lines of a running job in the agent's log."""
    log_sink: str | None = Field(default=None, validation_alias=_variable("TUNEFLEET_LOG_SINK"))
    """Where the agent's log goes too: `syslog://HOST:514` (UDP) or `syslog+tcp://HOST:514`."""
    url_allow: CommaList = Field(default=(), validation_alias=_variable("TUNEFLEET_URL_ALLOW"))
    """Hosts and networks in private ranges that a dataset's address may name, separated by commas."""
    warm_start: bool = Field(default=True, validation_alias=_variable("TUNEFLEET_WARM_START"))
    """Keep the training libraries imported in a fork server, so that a job starts in under a second."""
    allow_code: bool = Field(default=False, validation_alias=_variable("TUNEFLEET_ALLOW_CODE"))
    """Whether code that comes with a model (`trust_remote_code`) may run on this machine."""
    visible_gpus: str | None = Field(default=None, validation_alias=_variable("CUDA_VISIBLE_DEVICES"))
    """The GPUs that the agent may use, by index or UUID; default: all."""

    @field_validator("agent_id", mode="before")
    @classmethod
    def _no_comment(cls, value: Any) -> Any:
        if isinstance(value, str) and "#" in value:
            # systemd's EnvironmentFile keeps what follows the value; sent as an id it would be refused far from here.
            raise ValueError("a comment behind the value is part of it; write comments on lines of their own")
        return value

    @property
    def backend(self) -> str | None:
        """The backend's URL without a slash at its end; `None` if nobody is told."""
        return None if self.backend_url.lower() == "none" else self.backend_url.rstrip("/")

    @property
    def agent_id_file(self) -> Path:
        """Where the agent's made-up name is kept."""
        return self.home_dir / "agent_id"

    @property
    def env_file(self) -> Path:
        """Settings of the installed agent, `NAME=value` a line; the environment and `.env` come before it."""
        return self.home_dir / "agent.env"


def load(cls: type[S], **overrides: Any) -> S:
    """Build the settings of a process from its environment and explicit overrides.

    Args:
        cls: Which process.
        overrides: Values from the command line, by field name; `None` means "not given".

    Raises:
        MachineError: If a value is unusable; the message names the variable and the value.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return cls(**given)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}={e['input']!r}: {e['msg']}" for e in error.errors())
        raise MachineError(f"A setting cannot be used: {faults}.", hint="Mend the variable or the option.") from None


def load_agent(**overrides: Any) -> AgentSettings:
    """Build the agent's settings: environment, then `.env`, then `agent.env` in `TUNEFLEET_HOME`.

    Args:
        overrides: Values by field name; `None` means "not given".

    Raises:
        MachineError: If a value is unusable.
    """
    files = (load(ProcessSettings).home_dir / "agent.env", ".env")  # of two files the later one counts
    return load(AgentSettings, _env_file=files, **overrides)


def inherited_environment(*drop: str) -> dict[str, str]:
    """Return this process's environment for a child, without variables that the child must not see.

    Args:
        drop: Names to leave out; keys of ours are always left out.
    """
    hidden = {"TUNEFLEET_KEY", "TUNEFLEET_WORKER_KEY", "ORCHESTRATOR_TOKEN", "AGENT_KEY", *drop}
    return {name: value for name, value in os.environ.items() if name not in hidden}


def replace_environment(environment: Mapping[str, str]) -> None:
    """Make this the environment of the process: a forked trainer takes the one that its job names.

    Args:
        environment: All of it; what it lacks is removed.
    """
    os.environ.clear()
    os.environ.update(environment)
