"""Settings of the agent of one machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, SecretStr, field_validator

from tunefleet.settings.base import CommaList, SharedGpuSettings, TlsSettings, TracingSettings, variable
from tunefleet.settings.environment import SECRET_PREFIX, SECRETS_DIR


class AgentSettings(SharedGpuSettings, TlsSettings, TracingSettings):
    """Settings of the agent of one machine; the names are the document's, ours are `AGENT_KEY` and `TUNEFLEET_…`."""

    addresses: ClassVar[Mapping[str, tuple[str, ...]]] = {"BACKEND_URL": ("API_KEY", SECRET_PREFIX, SECRETS_DIR)}

    backend_url: str = Field(default="http://localhost:3000", validation_alias=variable("BACKEND_URL"))
    """Who is told of metrics, status and logs, and polled for jobs; `none` tells nobody."""
    api_key: SecretStr | None = Field(default=None, validation_alias=variable("API_KEY"))
    """The key for polling the backend; without one nothing is polled."""
    agent_id: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9_.-]{10,80}$", validation_alias=variable("AGENT_ID")
    )
    """The agent's name for the backend, 10 to 80 letters, digits, `_`, `-`, `.`; default: made once and kept in
    `agent_id` in `TUNEFLEET_HOME`."""
    poll_enabled: bool = Field(default=True, validation_alias=variable("POLL_ENABLED"))
    """Whether the backend is polled for jobs, if there is a key."""
    poll_interval_s: float = Field(default=10.0, gt=0, validation_alias=variable("POLL_INTERVAL_SECONDS"))
    """Seconds between two polls of a backend that does not hold them; unless it is set, the backend's word counts."""
    host: str = Field(default="127.0.0.1", validation_alias=variable("HOST"))
    """The address to listen on; anything but loopback needs `AGENT_KEY`."""
    port: int | None = Field(default=None, ge=0, le=65535, validation_alias=variable("PORT"))
    """The port to listen on; default 8000, or 8001 when that is taken."""
    key: SecretStr | None = Field(default=None, validation_alias=variable("AGENT_KEY"))
    """The key that requests must carry, as bearer or `X-API-Key`; without one only local processes of the same user
    are answered."""
    cors_origins: CommaList = Field(default=(), validation_alias=variable("CORS_ALLOW_ORIGINS"))
    """Web origins, separated by commas, whose pages may call the agent from a browser, such as
    `https://train.example.org`; default: none."""
    models_dir: Path = Field(default=Path("./models"), validation_alias=variable("MODELS_DIR"))
    """Where a model's bare name is looked for; a local model elsewhere is refused."""
    datasets_dir: Path = Field(default=Path("./datasets"), validation_alias=variable("DATASETS_DIR"))
    """Where a dataset's bare name is looked for, and where downloads go; a local dataset elsewhere is refused."""
    checkpoints_dir: Path = Field(default=Path("./checkpoints"), validation_alias=variable("CHECKPOINTS_DIR"))
    """One job folder for each job."""
    logs_dir: Path = Field(default=Path("./logs"), validation_alias=variable("LOGS_DIR"))
    """Where `agent.log` lies."""
    gpu_memory_fraction: float = Field(default=0.9, gt=0, le=1, validation_alias=variable("GPU_MEMORY_FRACTION"))
    """Part of a GPU's memory that a training may take; one that is estimated to need more is refused."""
    mixed_precision: bool = Field(default=True, validation_alias=variable("ENABLE_MIXED_PRECISION"))
    """Train in bf16, or in fp16 on a GPU without it; off: in float32."""
    max_jobs: int = Field(default=1, ge=1, validation_alias=variable("MAX_CONCURRENT_JOBS"))
    """Trainings at a time; further ones wait."""
    checkpoint_interval_steps: int = Field(default=500, ge=1, validation_alias=variable("CHECKPOINT_INTERVAL_STEPS"))
    """Steps between two checkpoints, where a job does not say."""
    metrics_interval_steps: int = Field(default=10, ge=1, validation_alias=variable("METRICS_REPORT_INTERVAL_STEPS"))
    """Steps between two points of the series, where a job does not say; each point is reported."""
    gpu_interval_s: float = Field(default=5.0, gt=0, validation_alias=variable("GPU_MONITORING_INTERVAL_SECONDS"))
    """Seconds between two looks at the GPUs' load."""
    heartbeat_interval_s: float = Field(default=30.0, gt=0, validation_alias=variable("HEARTBEAT_INTERVAL_SECONDS"))
    """Seconds between two heartbeats, and between two progress lines of a running job in the agent's log."""
    log_sink: str | None = Field(default=None, validation_alias=variable("TUNEFLEET_LOG_SINK"))
    """Where the agent's log goes too: `syslog://HOST:514` (UDP) or `syslog+tcp://HOST:514`."""
    url_allow: CommaList = Field(default=(), validation_alias=variable("TUNEFLEET_URL_ALLOW"))
    """Hosts and networks in private ranges that a dataset's address may name, separated by commas."""
    warm_start: bool = Field(default=True, validation_alias=variable("TUNEFLEET_WARM_START"))
    """Keep the training libraries imported in a fork server, so that a job starts in under a second."""
    allow_code: bool = Field(default=False, validation_alias=variable("TUNEFLEET_ALLOW_CODE"))
    """Whether code that comes with a model (`trust_remote_code`) may run on this machine."""
    visible_gpus: str | None = Field(default=None, validation_alias=variable("CUDA_VISIBLE_DEVICES"))
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
