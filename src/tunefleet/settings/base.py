"""What the settings of several processes have in common, and the types of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import platformdirs
from pydantic import AliasChoices, BeforeValidator, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


def _comma_list(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


CommaList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_comma_list)]


def variable(*names: str) -> AliasChoices:
    """Return what makes a field read the first of these variables that is set."""
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
        defer_build=True,
    )

    addresses: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Variable with an address → those of the secrets that go there: a file `.env` does not say where a secret goes
    that is not its own."""
    programs: ClassVar[tuple[str, ...]] = (
        "TUNEFLEET_ENVS_DIR", "TUNEFLEET_LLAMA_CPP", "MODEL_ARCHIVE_PIGZ_BIN", "TUNEFLEET_RAY_PYTHON",
        "TUNEFLEET_NODES_COMMAND", "TUNEFLEET_SLURM_PRELUDE", "TUNEFLEET_SLURM_OPTIONS",
    )  # fmt: skip
    """Variables with a program, or a folder of such, that is run: a file `.env` sets none of them."""

    home: Path = Field(default=Path("~/.tunefleet"), validation_alias=variable("TUNEFLEET_HOME"))
    """Where this user's client file and job endpoints lie."""
    jobs_dir: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_JOBS_DIR"))
    """Where live jobs can be found; default: `jobs` in `TUNEFLEET_HOME`."""
    envs_dir: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_ENVS_DIR"))
    """Where `tunefleet env` makes environments; default: `tunefleet/envs` in the user's folder for data, such as
    `~/.local/share`."""
    ca_file: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_CA_FILE"))
    """A file of certificates (PEM) that are trusted beside the system's, where the server's own comes from a private
    authority."""
    log_format: Literal["text", "json"] = Field(default="text", validation_alias=variable("TUNEFLEET_LOG_FORMAT"))
    """How log lines look: `text` for people, `json` (one object a line, with the ids of what it belongs to) for
    machines."""
    log_level: str = Field(default="INFO", validation_alias=variable("LOG_LEVEL"))
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
    def envs_folder(self) -> Path:
        """Where the environments of task kinds lie, one folder each."""
        return (self.envs_dir or platformdirs.user_data_path("tunefleet") / "envs").expanduser().absolute()

    @property
    def models_folder(self) -> Path:
        """Models that did not come from a hub, one folder each."""
        return platformdirs.user_cache_path("tunefleet") / "models"

    @property
    def joined_file(self) -> Path:
        """What `tunefleet join` has kept: the settings of this machine's worker, `NAME=value` a line."""
        return self.home_dir / "worker.env"

    @property
    def client_file(self) -> Path:
        """The URL and key that the CLI and the SDK use when nothing else is given."""
        return self.home_dir / "client.json"


class ClientSettings(ProcessSettings):
    """Settings of the CLI and the SDK; none of them is read from a file `.env`.

    Commands run wherever somebody has unpacked something: such a file would name the server that data and key go to.
    """

    model_config = SettingsConfigDict(env_file=None)

    url: str | None = Field(default=None, validation_alias=variable("TUNEFLEET_URL"))
    """The server that CLI and SDK speak to; default: the one that `tunefleet up` wrote into the client file."""
    key: SecretStr | None = Field(default=None, validation_alias=variable("TUNEFLEET_KEY"))
    """The API key for that server; default: the one in the client file."""
    debug: bool = Field(default=False, validation_alias=variable("TUNEFLEET_DEBUG"))
    """Whether the command line prints the traceback of an error."""
    hub_offline: bool = Field(default=False, validation_alias=variable("HF_HUB_OFFLINE"))
    """Hugging Face's own switch: nothing is fetched from its hub; `tunefleet doctor` says how it stands."""


class TlsSettings(ProcessSettings):
    """What a process needs that serves HTTPS."""

    tls_cert_file: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_TLS_CERT_FILE"))
    """The certificate to serve HTTPS with: PEM, its own first, then those of the authorities between; read again when
    the file changes. Without one, plain HTTP is served."""
    tls_key_file: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_TLS_KEY_FILE"))
    """The private key of that certificate: PEM, without a passphrase."""


class TracingSettings(ProcessSettings):
    """Where a process sends what it has done."""

    addresses: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "TUNEFLEET_OTLP_ENDPOINT": ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"),
    }

    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^/]",
        validation_alias=variable("TUNEFLEET_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    )
    """Where spans are sent: the base URL of an OpenTelemetry collector that takes OTLP over HTTP, such as
    `http://localhost:4318`, with the extra `otel`; default: nowhere."""


class MeetingSettings(TracingSettings):
    """How server and worker meet, and where they log."""

    redis_url: SecretStr | None = Field(default=None, validation_alias=variable("REDIS_URL"))
    """A Redis (or Valkey, 6.2 or newer) in which server and workers meet, such as `redis://localhost:6379/0`. A server
    answers HTTP workers beside it; a worker uses it instead of HTTP, and needs no key."""
    topic: str = Field(
        default="tasks",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        validation_alias=variable("TASK_TOPIC"),
    )
    """Names the Redis streams of tasks; the server and its workers must have the same."""
    redis_ca_file: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_REDIS_CA_FILE"))
    """The authorities (PEM) that may have signed the certificate of a `rediss://` Redis; default: the system's."""
    redis_cert_file: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_REDIS_CERT_FILE"))
    """A certificate (PEM) to show to a Redis that asks its clients for one."""
    redis_key_file: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_REDIS_KEY_FILE"))
    """The private key of that certificate."""
    redis_prefix: str = Field(default="", validation_alias=variable("TUNEFLEET_REDIS_PREFIX"))
    """Put before every Redis key, where a Redis is shared with others."""
    log_file: Path | None = Field(default=None, validation_alias=variable("LOG_FILE"))
    """A file for the log, beside standard error; default: of a worker `worker.log` in its folder, of a server none."""
    log_max_bytes: int = Field(default=5 << 20, gt=0, validation_alias=variable("LOG_MAX_BYTES"))
    """Size at which that file is put aside and a new one begun."""
    log_backup_count: int = Field(default=5, ge=1, validation_alias=variable("LOG_BACKUP_COUNT"))
    """How many files that were put aside are kept."""

    @field_validator("topic")
    @classmethod
    def _not_theirs(cls, value: str) -> str:
        if value in {"worker", "workers"}:
            raise ValueError("keys that start with this are those of the workers themselves; choose another name")
        return value


class SharedGpuSettings(ProcessSettings):
    """What a process needs that runs jobs on GPUs which it shares with people."""

    job_log_bytes: int = Field(default=256 << 20, ge=32 << 20, validation_alias=variable("TUNEFLEET_JOB_LOG_BYTES"))
    """How much of each job's log its folder keeps: the first 8 MiB and the newest part; a line in the log counts what
    is dropped."""
    yielding: Literal["off", "claim", "pause"] = Field(default="claim", validation_alias=variable("TUNEFLEET_YIELD"))
    """When somebody else uses a GPU: `off`: never mind; `claim`: begin no job on it; `pause`: also pause a job that
    runs on it, and go on when they have gone."""
    yield_idle_s: float = Field(default=120.0, gt=0, validation_alias=variable("TUNEFLEET_YIELD_IDLE_S"))
    """How long a GPU that somebody else used must be quiet before a job begins or goes on there."""
