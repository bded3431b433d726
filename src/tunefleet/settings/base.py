"""Settings that several processes share, and the types of their fields."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import platformdirs
from pydantic import AliasChoices, BeforeValidator, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

_WEB = r"^https?://\S+$"


def _comma_list(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


CommaList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_comma_list)]


def variable(*names: str) -> AliasChoices:
    """Return the alias that makes a field read the first of these variables that is set.

    Args:
        names: Our own name, `TUNEFLEET_…`, first; then those of compatible systems.
    """
    return AliasChoices(*names)


class ProcessSettings(BaseSettings):
    """Settings of every process."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        case_sensitive=True,
        env_file=".env",
        env_file_encoding="utf-8",
        env_ignore_empty=True,  # `NAME=` in a compose or unit file means "not set"
        defer_build=True,
    )

    # A `.env` may come with an unpacked archive: it must not redirect a secret that the environment holds.
    addresses: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Address variable → variables of the secrets that are sent to it."""
    programs: ClassVar[tuple[str, ...]] = (
        "TUNEFLEET_ENVS_DIR", "TUNEFLEET_LLAMA_CPP", "TUNEFLEET_ARCHIVE_PIGZ_BIN", "MODEL_ARCHIVE_PIGZ_BIN",
        "TUNEFLEET_RAY_PYTHON", "TUNEFLEET_NODES_COMMAND", "TUNEFLEET_SLURM_PRELUDE", "TUNEFLEET_SLURM_OPTIONS",
    )  # fmt: skip
    """Variables that name programs to run, or folders of programs; a `.env` that sets one is rejected."""

    home: Path = Field(default=Path("~/.tunefleet"), validation_alias=variable("TUNEFLEET_HOME"))
    """The user's folder for the client file and job endpoints."""
    jobs_dir: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_JOBS_DIR"))
    """Folder for the control endpoints of live jobs. Default: `jobs` in `TUNEFLEET_HOME`."""
    envs_dir: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_ENVS_DIR"))
    """Folder where `tunefleet env` creates environments. Default: `tunefleet/envs` in the user's data folder, such as
    `~/.local/share`."""
    ca_file: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_CA_FILE"))
    """CA certificates (PEM) to trust in addition to the system's, for servers with a certificate from a private CA."""
    log_format: Literal["text", "json"] = Field(default="text", validation_alias=variable("TUNEFLEET_LOG_FORMAT"))
    """Log format: `text` for people, or `json` for machines (one object per line, with request, task and worker
    ids)."""
    log_level: str = Field(default="INFO", validation_alias=variable("TUNEFLEET_LOG_LEVEL", "LOG_LEVEL"))
    """Log level: `DEBUG`, `INFO`, `WARNING` or `ERROR`."""

    @classmethod
    def names_of(cls, name: str) -> tuple[str, ...]:
        """Return all names of a variable; the first one that is set applies."""
        for field in cls.model_fields.values():
            alias = field.validation_alias
            if isinstance(alias, AliasChoices) and name in alias.choices:
                return tuple(map(str, alias.choices))
        return (name,)

    @property
    def home_dir(self) -> Path:
        """`home` with `~` resolved."""
        return self.home.expanduser()

    @property
    def endpoints_dir(self) -> Path:
        """Endpoints of live jobs: one folder with an `endpoint.json` per job."""
        return (self.jobs_dir or self.home / "jobs").expanduser()

    @property
    def envs_folder(self) -> Path:
        """Python environments of task types, one folder each."""
        return (self.envs_dir or platformdirs.user_data_path("tunefleet") / "envs").expanduser().absolute()

    @property
    def models_folder(self) -> Path:
        """Cached models that were not fetched from a hub, one folder each."""
        return platformdirs.user_cache_path("tunefleet") / "models"

    @property
    def joined_file(self) -> Path:
        """Settings of this machine's worker as saved by `tunefleet join`, one `NAME=value` per line."""
        return self.home_dir / "worker.env"

    @property
    def client_file(self) -> Path:
        """Default URL and key of the CLI and the SDK."""
        return self.home_dir / "client.json"


class ClientSettings(ProcessSettings):
    """Settings of the CLI and the SDK; never read from `.env`."""

    # Commands run in any folder: a `.env` that came with an archive would choose the server that gets data and key.
    model_config = SettingsConfigDict(env_file=None)

    url: str | None = Field(default=None, validation_alias=variable("TUNEFLEET_URL"))
    """Server URL for the CLI and the SDK. Default: the URL that `tunefleet up` saved in the client file."""
    key: SecretStr | None = Field(default=None, validation_alias=variable("TUNEFLEET_KEY"))
    """API key for that server. Default: the key in the client file."""
    debug: bool = Field(default=False, validation_alias=variable("TUNEFLEET_DEBUG"))
    """Print tracebacks for errors on the command line."""
    hub_offline: bool = Field(default=False, validation_alias=variable("HF_HUB_OFFLINE"))
    """Hugging Face's offline mode: nothing is downloaded from the Hub. `tunefleet doctor` shows whether it is on."""


class TlsSettings(ProcessSettings):
    """TLS settings of a process that serves HTTPS."""

    tls_cert_file: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_TLS_CERT_FILE"))
    """TLS certificate chain (PEM), with the server's own certificate first, followed by the intermediates. It is
    reloaded when the file changes. If unset, plain HTTP is served."""
    tls_key_file: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_TLS_KEY_FILE"))
    """Private key of the certificate (PEM, no passphrase)."""


class TracingSettings(ProcessSettings):
    """Where a process sends its trace spans."""

    addresses: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "TUNEFLEET_OTLP_ENDPOINT": ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"),
    }

    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^/]",
        validation_alias=variable("TUNEFLEET_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    )
    """Base URL of an OpenTelemetry collector that accepts OTLP over HTTP, such as `http://localhost:4318`. Requires the
    extra `otel`. Default: no tracing."""


class RedisSettings(TracingSettings):
    """Redis transport between server and workers, and log files."""

    redis_url: SecretStr | None = Field(default=None, validation_alias=variable("TUNEFLEET_REDIS_URL", "REDIS_URL"))
    """URL of a Redis or Valkey server (6.2 or newer) that connects server and workers, such as
    `redis://localhost:6379/0`. A worker with this setting uses Redis instead of HTTP and needs no key; the server still
    accepts HTTP workers too."""
    topic: str = Field(
        default="tasks",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        validation_alias=variable("TUNEFLEET_TASK_TOPIC", "TASK_TOPIC"),
    )
    """Name of the Redis streams for tasks. It must be the same on the server and its workers."""
    redis_ca_file: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_REDIS_CA_FILE"))
    """CA certificates (PEM) for a `rediss://` URL. Default: the system's."""
    redis_cert_file: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_REDIS_CERT_FILE"))
    """Client certificate (PEM), if Redis requires one."""
    redis_key_file: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_REDIS_KEY_FILE"))
    """Private key of that client certificate."""
    redis_prefix: str = Field(default="", validation_alias=variable("TUNEFLEET_REDIS_PREFIX"))
    """Prefix for all Redis keys, if other applications share the Redis server."""
    log_file: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_LOG_FILE", "LOG_FILE"))
    """Log file, in addition to standard error. Default: `worker.log` in the worker's folder; none for a server."""
    log_max_bytes: int = Field(
        default=5 << 20, gt=0, validation_alias=variable("TUNEFLEET_LOG_MAX_BYTES", "LOG_MAX_BYTES")
    )
    """Size in bytes at which the log file is rotated."""
    log_backup_count: int = Field(
        default=5, ge=1, validation_alias=variable("TUNEFLEET_LOG_BACKUP_COUNT", "LOG_BACKUP_COUNT")
    )
    """Number of rotated log files to keep."""

    @field_validator("topic")
    @classmethod
    def _not_theirs(cls, value: str) -> str:
        if value in {"worker", "workers"}:
            raise ValueError("this prefix is reserved for the workers' own keys; choose another name")
        return value


class SharedGpuSettings(ProcessSettings):
    """Settings of a process that runs jobs on GPUs shared with other users."""

    job_log_bytes: int = Field(default=256 << 20, ge=32 << 20, validation_alias=variable("TUNEFLEET_JOB_LOG_BYTES"))
    """Bytes to keep of each job's log in its folder: the first 8 MiB and the newest part. A line in the log says how
    much was dropped."""
    yielding: Literal["off", "claim", "pause"] = Field(default="claim", validation_alias=variable("TUNEFLEET_YIELD"))
    """What to do when another process uses a GPU. `off`: ignore it; `claim`: start no job on that GPU; `pause`:
    additionally pause the job running there, and resume it when the GPU is free."""
    yield_idle_s: float = Field(default=120.0, gt=0, validation_alias=variable("TUNEFLEET_YIELD_IDLE_S"))
    """Seconds that a GPU must be idle after another process used it before a job starts or resumes there."""


class NodeSettings(ProcessSettings):
    """Settings shared by cluster nodes and the server that requests them."""

    nodes_dir: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_NODES_DIR"))
    """Working folder on cluster nodes, with one subfolder per cluster job. With Slurm, the server must be able to see
    the same folder, because it reads the job logs there. Default: `nodes` in `TUNEFLEET_HOME`."""
    nodes_patience_s: float = Field(default=600.0, gt=0, validation_alias=variable("TUNEFLEET_NODES_PATIENCE_S"))
    """Seconds to wait for the remaining nodes of a cluster job after the first has started, and for a node to receive
    its task."""

    @property
    def nodes_folder(self) -> Path:
        """`nodes_dir` with its default, `~` resolved."""
        return (self.nodes_dir or self.home / "nodes").expanduser().absolute()


class ClusterSettings(NodeSettings):
    """Which cluster managers the server requests nodes from, and what it starts there."""

    slurm: bool = Field(default=False, validation_alias=variable("TUNEFLEET_SLURM"))
    """Accept tasks with `engine: slurm`. The server submits their jobs with its machine's `sbatch`, as the user it runs
    as."""
    slurm_options: str = Field(default="", validation_alias=variable("TUNEFLEET_SLURM_OPTIONS"))
    """`sbatch` options for all jobs, such as `--partition=gpu --account=lab`. A task's own options take precedence."""
    slurm_prelude: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_SLURM_PRELUDE"))
    """File with shell commands to insert at the start of the batch script, such as `module load cuda`."""
    ray_address: str | None = Field(default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_RAY_ADDRESS"))
    """Dashboard URL of a Ray cluster, such as `http://head:8265`. Enables tasks with `engine: ray`."""
    ray_token: SecretStr | None = Field(default=None, validation_alias=variable("TUNEFLEET_RAY_TOKEN"))
    """Token for that cluster, if it requires one (`RAY_AUTH_MODE=token`)."""
    ray_python: str = Field(default="python", min_length=1, validation_alias=variable("TUNEFLEET_RAY_PYTHON"))
    """Python interpreter on the Ray cluster, as a command or path on its head node. Tunefleet must be installed in
    it."""
    nodes_url: str | None = Field(default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_NODES_URL"))
    """Server URL as seen from the nodes. Default: `TUNEFLEET_PUBLIC_URL`, or the address the server listens on."""
    nodes_command: str = Field(default="tunefleet", validation_alias=variable("TUNEFLEET_NODES_COMMAND"))
    """Command that runs Tunefleet on the nodes, such as `/shared/venv/bin/tunefleet`."""
    nodes_jobs: int = Field(default=100, ge=1, validation_alias=variable("TUNEFLEET_NODES_JOBS"))
    """Maximum number of concurrent cluster jobs. Further tasks stay in the server's queue."""
    nodes_look_s: float = Field(default=5.0, gt=0, validation_alias=variable("TUNEFLEET_NODES_LOOK_S"))
    """Seconds between status checks of the cluster jobs."""

    @field_validator("slurm_options", "nodes_command")
    @classmethod
    def _words(cls, value: str) -> str:
        try:
            shlex.split(value)
        except ValueError as error:
            raise ValueError(f"cannot be parsed as a command line: {error}") from None
        return value
