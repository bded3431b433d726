"""Frozen settings, one class per process; the only module that reads `os.environ` (but one in `attach`).

Names from the documents that we stay compatible with are kept exactly; ours start with `TUNEFLEET_`. Each process
builds its settings once, in its `main`, and passes them down. `.env` is read there too, and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from dotenv import dotenv_values
from pydantic import AliasChoices, BeforeValidator, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tunefleet.errors import MachineError
from tunefleet.unsupported import UNSUPPORTED

S = TypeVar("S", bound="ProcessSettings")

SECRET_PREFIX: Final = "TUNEFLEET_SECRET_"
"""`${secret:NAME}` in a spec is the variable with this before the name, or a file `NAME` in `TUNEFLEET_SECRETS_DIR`."""

_KEYS: Final = ("TUNEFLEET_KEY", "TUNEFLEET_WORKER_KEY", "ORCHESTRATOR_TOKEN", "AGENT_KEY")
_ADDRESSES: Final = ("REDIS_URL", "TUNEFLEET_DATABASE_URL", "TUNEFLEET_SMTP_URL")
"""Variables of our own processes that no child is given unasked."""


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


class MeetingSettings(ProcessSettings):
    """How server and worker meet, and where they log."""

    redis_url: SecretStr | None = Field(default=None, validation_alias=_variable("REDIS_URL"))
    """A Redis (or Valkey, 6.2 or newer) in which server and workers meet, such as `redis://localhost:6379/0`. A server
    answers HTTP workers beside it; a worker uses it instead of HTTP, and needs no key."""
    topic: str = Field(
        default="tasks",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        validation_alias=_variable("TASK_TOPIC"),
    )
    """Names the Redis streams of tasks; the server and its workers must have the same."""
    redis_prefix: str = Field(default="", validation_alias=_variable("TUNEFLEET_REDIS_PREFIX"))
    """Put before every Redis key, where a Redis is shared with others."""
    log_file: Path | None = Field(default=None, validation_alias=_variable("LOG_FILE"))
    """A file for the log, beside standard error; default: of a worker `worker.log` in its folder, of a server none."""
    log_max_bytes: int = Field(default=5 << 20, gt=0, validation_alias=_variable("LOG_MAX_BYTES"))
    """Size at which that file is put aside and a new one begun."""
    log_backup_count: int = Field(default=5, ge=1, validation_alias=_variable("LOG_BACKUP_COUNT"))
    """How many files that were put aside are kept."""

    @field_validator("topic")
    @classmethod
    def _not_theirs(cls, value: str) -> str:
        if value in {"worker", "workers"}:
            raise ValueError("keys that start with this are those of the workers themselves; choose another name")
        return value


class ServerSettings(MeetingSettings):
    """Settings of the server."""

    data: Path = Field(default=Path("~/.tunefleet/data"), validation_alias=_variable("TUNEFLEET_DATA"))
    """The server's folder: database, artifacts, first keys. One server at a time."""
    host: str = Field(default="127.0.0.1", validation_alias=_variable("TUNEFLEET_HOST", "HOST_APP_HOST"))
    """The address to listen on; anything but loopback makes the server reachable by others, who need a key."""
    port: int = Field(
        default=8000, ge=0, le=65535, validation_alias=_variable("TUNEFLEET_PORT", "HOST_APP_PORT", "PORT")
    )
    """The port to listen on; 0 takes a free one."""
    shared_token: SecretStr | None = Field(default=None, validation_alias=_variable("ORCHESTRATOR_TOKEN"))
    """A secret that is good as an admin's key for as long as it is set, for clients that share one token; beside it
    every other key works as before."""
    database_url: SecretStr | None = Field(default=None, validation_alias=_variable("TUNEFLEET_DATABASE_URL"))
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
    worker_selection: Literal["best_fit", "first_fit", "min_satisfying"] = Field(
        default="best_fit", validation_alias=_variable("ORCHESTRATOR_WORKER_SELECTION")
    )
    """Which of the workers that fit gets a task: `best_fit` weighs throughput against cost, `first_fit` takes the
    largest, `min_satisfying` the smallest."""
    lambda_inference: float = Field(default=0.4, ge=0, le=1, validation_alias=_variable("SCHEDULER_LAMBDA_INFERENCE"))
    """What throughput weighs for inference with `best_fit`; the rest is what cost weighs."""
    lambda_training: float = Field(default=0.8, ge=0, le=1, validation_alias=_variable("SCHEDULER_LAMBDA_TRAINING"))
    """The same for trainings."""
    lambda_other: float = Field(default=0.5, ge=0, le=1, validation_alias=_variable("SCHEDULER_LAMBDA_OTHER"))
    """The same for all other kinds."""
    selection_jitter: float = Field(default=1e-3, ge=0, validation_alias=_variable("SCHEDULER_SELECTION_JITTER"))
    """How far a `best_fit` score is moved, up or down, so that equal workers are spread."""
    context_reuse: bool = Field(default=True, validation_alias=_variable("ENABLE_CONTEXT_REUSE"))
    """Prefer workers that have the task's model and datasets."""
    cache_ttl_s: float = Field(default=3600.0, ge=0, validation_alias=_variable("WORKER_CACHE_TTL_SEC"))
    """How long a worker that was given a model or dataset counts as having it, unless it says so itself."""
    stickiness: bool = Field(default=False, validation_alias=_variable("ENABLE_STAGE_WEIGHT_STICKINESS"))
    """Prefer the worker that holds the files of an earlier stage; a training waits a little for it."""
    dispatch_mode: str = Field(default="adaptive", validation_alias=_variable("ORCHESTRATOR_DISPATCH_MODE"))
    """How tasks are handed out; `adaptive` alone is supported."""
    merge: bool = Field(default=True, validation_alias=_variable("ENABLE_TASK_MERGE"))
    """Run equal waiting tasks of one owner as one, where the worker's executor can."""
    merge_largest: int = Field(default=4, ge=1, validation_alias=_variable("TASK_MERGE_MAX_BATCH_SIZE"))
    """How many tasks may run as one, the first included."""
    elastic: bool = Field(default=True, validation_alias=_variable("ENABLE_ELASTIC_SCALING"))
    """Let idle workers rest while the queue is short, and come back when it grows; a resting worker runs on and gets
    nothing new. Never rests who alone can run a task that waits."""
    elastic_idle_s: float = Field(default=60.0, ge=0, validation_alias=_variable("ELASTIC_AUTO_DISABLE_IDLE_SEC"))
    """How long a worker must have had nothing to do before it rests."""
    elastic_enable_queue: int = Field(
        default=0, ge=0, validation_alias=_variable("ELASTIC_AUTO_ENABLE_QUEUE_THRESHOLD")
    )
    """How many tasks must wait for resting workers to come back; with 0 one is enough."""
    elastic_disable_queue: int = Field(default=0, ge=0, validation_alias=_variable("ELASTIC_AUTO_DISABLE_QUEUE_MAX"))
    """With more waiting tasks than this nobody is sent to rest."""
    elastic_poll_s: float = Field(default=30.0, gt=0, validation_alias=_variable("ELASTIC_AUTO_POLL_INTERVAL_SEC"))
    """Time between two looks for workers that may rest."""
    elastic_cooldown_s: float | None = Field(
        default=None, ge=0, validation_alias=_variable("ELASTIC_AUTO_TOGGLE_COOLDOWN_SEC")
    )
    """How long a worker that was called back stays before it may rest again; a waiting task calls one back at once;
    default: twice the time between two looks, at least 60 s."""
    elastic_min_active: int = Field(default=1, ge=0, validation_alias=_variable("ELASTIC_AUTO_MIN_ACTIVE_WORKERS"))
    """How many workers never rest; at least one."""
    elastic_enable_many: bool = Field(default=True, validation_alias=_variable("ELASTIC_AUTO_ENABLE_MULTI_WORKERS"))
    """Call back several workers at a time, as many as the queue needs."""
    public_base_url: str | None = Field(default=None, validation_alias=_variable("PUBLIC_BASE_URL"))
    """The URL under which others reach the server; used for links that it hands out."""
    links_last_s: float = Field(default=7 * 86400.0, gt=0, validation_alias=_variable("TUNEFLEET_LINKS_LAST_S"))
    """How long a link to a task's file is good without a key."""
    cors_origins: CommaList = Field(default=(), validation_alias=_variable("TUNEFLEET_CORS_ORIGINS"))
    """Web origins that may call the API from a browser, separated by commas."""
    url_allow: CommaList = Field(default=(), validation_alias=_variable("TUNEFLEET_URL_ALLOW"))
    """Hosts and networks in private ranges that notifications may go to, separated by commas."""
    smtp_url: SecretStr | None = Field(default=None, validation_alias=_variable("TUNEFLEET_SMTP_URL"))
    """The mail server for notifications: `smtp://USER:PASSWORD@HOST:587` (encrypted if it offers that) or
    `smtps://…:465`; without one no mail is sent."""
    smtp_from: str = Field(default="tunefleet@localhost", validation_alias=_variable("TUNEFLEET_SMTP_FROM"))
    """The address that mail comes from."""

    @field_validator("dispatch_mode")
    @classmethod
    def _adaptive(cls, value: str) -> str:
        if value in {"fixed_pipeline", "static_round_robin", "static_worker"}:
            raise ValueError(
                "it is a baseline of a paper and is not supported: it hands out tasks without a look at what is free; "
                "leave it out, or write adaptive"
            )
        if value != "adaptive":
            raise ValueError("there is no such mode; leave it out, or write adaptive")
        return value

    @property
    def data_dir(self) -> Path:
        """`data` with `~` resolved."""
        return self.data.expanduser()


class SecretSettings(ProcessSettings):
    """Where the secrets lie that tasks may name."""

    secrets_dir: Path | None = Field(default=None, validation_alias=_variable("TUNEFLEET_SECRETS_DIR"))
    """A folder with one file for each secret that a task may name as `${secret:NAME}`, readable by its owner alone;
    `TUNEFLEET_SECRET_<NAME>` variables come first."""


class CacheSettings(ProcessSettings):
    """Where Hugging Face keeps what it has fetched; the variables are its own."""

    hub_cache: Path | None = Field(default=None, validation_alias=_variable("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"))
    """Where models and datasets lie that were fetched; default: `hub` in `HF_HOME`. Workers that have what a task names
    are preferred."""
    hf_home: Path | None = Field(default=None, validation_alias=_variable("HF_HOME"))
    """Hugging Face's folder; default: `huggingface` in `XDG_CACHE_HOME`."""
    cache_home: Path = Field(default=Path("~/.cache"), validation_alias=_variable("XDG_CACHE_HOME"))
    """The user's folder for caches."""

    @property
    def hub_dir(self) -> Path:
        """Where models and datasets lie that were fetched."""
        return (self.hub_cache or (self.hf_home or self.cache_home / "huggingface") / "hub").expanduser()


class SharedGpuSettings(ProcessSettings):
    """What a process needs that runs jobs on GPUs which it shares with people."""

    yielding: Literal["off", "claim", "pause"] = Field(default="claim", validation_alias=_variable("TUNEFLEET_YIELD"))
    """When somebody else uses a GPU: `off`: never mind; `claim`: begin no job on it; `pause`: also pause a job that
    runs on it, and go on when they have gone."""
    yield_idle_s: float = Field(default=120.0, gt=0, validation_alias=_variable("TUNEFLEET_YIELD_IDLE_S"))
    """How long a GPU that somebody else used must be quiet before a job begins or goes on there."""


class TransferSettings(ProcessSettings):
    """How files come to a worker and leave it."""

    bandwidth_bytes_per_s: float | None = Field(
        default=None, gt=0, validation_alias=_variable("WORKER_NETWORK_BANDWIDTH_BYTES_PER_SEC")
    )
    """Holds results, archives, checkpoints and downloads to this speed, all together; default: as fast as it goes."""
    url_allow: CommaList = Field(default=(), validation_alias=_variable("TUNEFLEET_URL_ALLOW"))
    """Hosts and networks in private ranges that an address in a document may name, separated by commas."""
    shared_dirs: CommaList = Field(default=(), validation_alias=_variable("TUNEFLEET_SHARED_DIRS"))
    """Folders beside `RESULTS_DIR`, such as a mount, that a document may read from and write to by absolute path."""
    delivery_patience_s: float = Field(
        default=86_400.0, gt=0, validation_alias=_variable("TUNEFLEET_DELIVERY_PATIENCE_S")
    )
    """How long a delivery to an address of the document is tried again before its task fails; nothing is run again."""
    archive_pigz: bool = Field(default=True, validation_alias=_variable("MODEL_ARCHIVE_USE_PIGZ"))
    """Compress archives with `pigz`, on several cores, where it is installed."""
    archive_pigz_bin: str = Field(default="pigz", validation_alias=_variable("MODEL_ARCHIVE_PIGZ_BIN"))
    """That program, by name or path."""
    archive_pigz_threads: int | None = Field(
        default=None, ge=1, validation_alias=_variable("MODEL_ARCHIVE_PIGZ_THREADS")
    )
    """Cores that it takes; default: all."""
    archive_level: int | None = Field(default=None, validation_alias=_variable("MODEL_ARCHIVE_COMPRESSION_LEVEL"))
    """0 (not at all) to 9; default: the fastest that compresses, since weights hardly shrink."""
    cleanup_after_upload: bool = Field(default=False, validation_alias=_variable("MODEL_CLEANUP_AFTER_UPLOAD"))
    """Delete what was trained, its archive and its checkpoints from the worker once the server has what it delivers."""

    @field_validator("archive_level")
    @classmethod
    def _clamped(cls, value: int | None) -> int | None:
        return None if value is None else min(9, max(0, value))


class WorkerSettings(SharedGpuSettings, MeetingSettings, SecretSettings, CacheSettings, TransferSettings):
    """Settings of a worker."""

    server_url: str = Field(default="http://127.0.0.1:8000", validation_alias=_variable("ORCHESTRATOR_BASE_URL"))
    """The server that the worker takes its tasks from."""
    key: SecretStr | None = Field(
        default=None, validation_alias=_variable("TUNEFLEET_WORKER_KEY", "ORCHESTRATOR_TOKEN")
    )
    """The worker's API key (role `worker`); with `REDIS_URL` it needs none."""
    results_dir: Path = Field(default=Path("./results_workers"), validation_alias=_variable("RESULTS_DIR"))
    """The worker's folder: its identity, and one folder for each task."""
    worker_id: str | None = Field(default=None, validation_alias=_variable("WORKER_ID"))
    """The worker's name; default: made once and kept in the results folder."""
    tags: CommaList = Field(default=(), validation_alias=_variable("WORKER_TAGS"))
    """Tags that a task may ask for, separated by commas."""
    heartbeat_interval_s: float = Field(default=30.0, gt=0, validation_alias=_variable("HEARTBEAT_INTERVAL_SEC"))
    """Seconds between two reports of load; the lease does not hang on them."""
    cost_per_hour: float = Field(default=1.0, ge=0, validation_alias=_variable("WORKER_COST_PER_HOUR"))
    """What an hour of this worker costs, in whatever currency; placement weighs it against throughput."""
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
        drop: Names to leave out; keys of ours, and addresses that may hold a password, are always left out.
    """
    hidden = {*_KEYS, *_ADDRESSES, *drop}
    plain = {name: value for name, value in os.environ.items() if not name.startswith(SECRET_PREFIX)}
    return {name: value for name, value in plain.items() if name not in hidden}


def secret_variables() -> dict[str, str]:
    """Return the secrets for tasks that lie in this process's environment, by their names without the prefix."""
    found = {name: value for name, value in os.environ.items() if name.startswith(SECRET_PREFIX)}
    return {name.removeprefix(SECRET_PREFIX): value for name, value in found.items()}


def forget_secret_variables() -> None:
    """Take the secrets for tasks out of this process's environment: what runs from now on does not find them."""
    for name in [name for name in os.environ if name.startswith(SECRET_PREFIX)]:
        del os.environ[name]


def replace_environment(environment: Mapping[str, str]) -> None:
    """Make this the environment of the process: a forked trainer takes the one that its job names.

    Args:
        environment: All of it; what it lacks is removed.
    """
    os.environ.clear()
    os.environ.update(environment)


def unsupported(process: Literal["server", "worker"]) -> list[str]:
    """Return a sentence for each variable that is set and has no effect here.

    Args:
        process: Which one starts.
    """
    given = {name for name, value in {**dotenv_values(".env"), **os.environ}.items() if value}
    return [
        f"{name} is not supported and has no effect: {instead}."
        for name, instead in UNSUPPORTED[process].items()
        if name in given
    ]
