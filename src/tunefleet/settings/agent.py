"""Settings of the agent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, SecretStr, field_validator

from tunefleet.settings.base import CommaList, SharedGpuSettings, TlsSettings, TracingSettings, variable
from tunefleet.settings.environment import SECRET_PREFIX, SECRETS_DIR


class AgentSettings(SharedGpuSettings, TlsSettings, TracingSettings):
    """Settings of the agent; the names of the agent protocol are accepted, too."""

    addresses: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "TUNEFLEET_BACKEND_URL": ("TUNEFLEET_BACKEND_KEY", SECRET_PREFIX, SECRETS_DIR)
    }

    backend_url: str = Field(
        default="http://localhost:3000", validation_alias=variable("TUNEFLEET_BACKEND_URL", "BACKEND_URL")
    )
    """URL of the backend that provides jobs and receives metrics, status and logs; `none` disables reporting."""
    api_key: SecretStr | None = Field(default=None, validation_alias=variable("TUNEFLEET_BACKEND_KEY", "API_KEY"))
    """API key for polling the backend. Without it, the agent does not poll."""
    agent_id: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9_.-]{10,80}$", validation_alias=variable("TUNEFLEET_AGENT_ID", "AGENT_ID")
    )
    """Name that the agent registers with the backend: 10 to 80 letters, digits, `_`, `-` or `.`. Default: generated
    once and stored in `agent_id` in `TUNEFLEET_HOME`."""
    poll_enabled: bool = Field(default=True, validation_alias=variable("TUNEFLEET_POLL", "POLL_ENABLED"))
    """Poll the backend for jobs if `TUNEFLEET_BACKEND_KEY` is set."""
    poll_interval_s: float = Field(
        default=10.0, gt=0, validation_alias=variable("TUNEFLEET_POLL_INTERVAL_S", "POLL_INTERVAL_SECONDS")
    )
    """Seconds between polls, if the backend does not support long polling. If unset, the agent uses the interval that
    the backend sends."""
    host: str = Field(default="127.0.0.1", validation_alias=variable("TUNEFLEET_AGENT_HOST", "HOST"))
    """Address to listen on. Any address but loopback requires `TUNEFLEET_AGENT_KEY`."""
    port: int | None = Field(default=None, ge=0, le=65535, validation_alias=variable("TUNEFLEET_AGENT_PORT", "PORT"))
    """Port to listen on. Default: 8000, or 8001 if 8000 is in use."""
    key: SecretStr | None = Field(default=None, validation_alias=variable("TUNEFLEET_AGENT_KEY", "AGENT_KEY"))
    """Key that clients must send as a bearer token or as `X-API-Key`. Without it, only local processes of the same user
    are accepted."""
    cors_origins: CommaList = Field(
        default=(), validation_alias=variable("TUNEFLEET_AGENT_CORS_ORIGINS", "CORS_ALLOW_ORIGINS")
    )
    """Comma-separated web origins, such as `https://train.example.org`, that may call the agent from a browser.
    Default: none."""
    models_dir: Path = Field(default=Path("./models"), validation_alias=variable("TUNEFLEET_MODELS_DIR", "MODELS_DIR"))
    """Folder for local models, searched when a job names a model without a path. Local models outside it are
    rejected."""
    datasets_dir: Path = Field(
        default=Path("./datasets"), validation_alias=variable("TUNEFLEET_DATASETS_DIR", "DATASETS_DIR")
    )
    """Folder for local and downloaded datasets, searched when a job names a dataset without a path. Local datasets
    outside it are rejected."""
    checkpoints_dir: Path = Field(
        default=Path("./checkpoints"), validation_alias=variable("TUNEFLEET_CHECKPOINTS_DIR", "CHECKPOINTS_DIR")
    )
    """Folder that contains one job folder per job."""
    logs_dir: Path = Field(default=Path("./logs"), validation_alias=variable("TUNEFLEET_LOGS_DIR", "LOGS_DIR"))
    """Folder for `agent.log`."""
    gpu_memory_fraction: float = Field(
        default=0.9, gt=0, le=1, validation_alias=variable("TUNEFLEET_MAX_GPU_MEMORY_FRACTION", "GPU_MEMORY_FRACTION")
    )
    """Fraction of a GPU's memory that a job may use. Jobs with a higher estimate are rejected."""
    mixed_precision: bool = Field(
        default=True, validation_alias=variable("TUNEFLEET_MIXED_PRECISION", "ENABLE_MIXED_PRECISION")
    )
    """Train in bf16, or in fp16 on GPUs without bf16. If false, train in float32."""
    max_jobs: int = Field(default=1, ge=1, validation_alias=variable("TUNEFLEET_MAX_JOBS", "MAX_CONCURRENT_JOBS"))
    """Maximum number of concurrent jobs. Further jobs are queued."""
    checkpoint_interval_steps: int = Field(
        default=500, ge=1, validation_alias=variable("TUNEFLEET_CHECKPOINT_INTERVAL_STEPS", "CHECKPOINT_INTERVAL_STEPS")
    )
    """Steps between checkpoints, for jobs that do not set it."""
    metrics_interval_steps: int = Field(
        default=10, ge=1, validation_alias=variable("TUNEFLEET_METRICS_INTERVAL_STEPS", "METRICS_REPORT_INTERVAL_STEPS")
    )
    """Steps between metric points, for jobs that do not set it. Every point is reported."""
    gpu_interval_s: float = Field(
        default=5.0, gt=0, validation_alias=variable("TUNEFLEET_GPU_INTERVAL_S", "GPU_MONITORING_INTERVAL_SECONDS")
    )
    """Seconds between GPU load samples."""
    heartbeat_interval_s: float = Field(
        default=30.0, gt=0, validation_alias=variable("TUNEFLEET_HEARTBEAT_INTERVAL_S", "HEARTBEAT_INTERVAL_SECONDS")
    )
    """Seconds between heartbeats, and between a running job's progress lines in the agent's log."""
    log_sink: str | None = Field(default=None, validation_alias=variable("TUNEFLEET_LOG_SINK"))
    """Additional destination for the agent's log: `syslog://HOST:514` (UDP) or `syslog+tcp://HOST:514`."""
    url_allow: CommaList = Field(default=(), validation_alias=variable("TUNEFLEET_URL_ALLOW"))
    """Comma-separated hosts and networks in private ranges that dataset URLs may point to."""
    warm_start: bool = Field(default=True, validation_alias=variable("TUNEFLEET_WARM_START"))
    """Keep a fork server with the training libraries imported, so that jobs start in under a second."""
    allow_code: bool = Field(default=False, validation_alias=variable("TUNEFLEET_ALLOW_CODE"))
    """Allow code that comes with a model (`trust_remote_code`) to run on this machine."""
    visible_gpus: str | None = Field(default=None, validation_alias=variable("CUDA_VISIBLE_DEVICES"))
    """GPUs the agent may use, by index or UUID. Default: all."""

    @field_validator("agent_id", mode="before")
    @classmethod
    def _no_comment(cls, value: Any) -> Any:
        if isinstance(value, str) and "#" in value:
            # systemd's EnvironmentFile keeps trailing comments in the value; the backend would reject it only later.
            raise ValueError("a comment after the value becomes part of it; put comments on separate lines")
        return value

    @property
    def backend(self) -> str | None:
        """The backend's URL without a trailing slash; `None` if reporting is disabled."""
        return None if self.backend_url.lower() == "none" else self.backend_url.rstrip("/")

    @property
    def agent_id_file(self) -> Path:
        """File with the agent's generated name."""
        return self.home_dir / "agent_id"

    @property
    def env_file(self) -> Path:
        """Settings of the installed agent, one `NAME=value` per line; the environment and `.env` take precedence."""
        return self.home_dir / "agent.env"
