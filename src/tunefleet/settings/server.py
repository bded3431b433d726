"""Settings of the server."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Literal

from pydantic import Field, SecretStr, field_validator

from tunefleet.settings.base import ClusterSettings, CommaList, RedisSettings, TlsSettings, variable

_PLACE: Final = r"^((s3|gs|az)://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[A-Za-z0-9!_.*'()/-]*)?|file:///[^?#]+)$"
_WEB: Final = r"^https?://[^/]"


class ServerSettings(RedisSettings, TlsSettings, ClusterSettings):
    """Settings of the server."""

    addresses: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "TUNEFLEET_S3_ENDPOINT": ("AWS_SECRET_ACCESS_KEY",),
        "TUNEFLEET_RAY_ADDRESS": ("TUNEFLEET_RAY_TOKEN",),
    }

    data: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_DATA"))
    """Data folder: database, artifacts, first keys; default: `data` in `TUNEFLEET_HOME`. Only one server at a time may
    use it."""
    host: str = Field(default="127.0.0.1", validation_alias=variable("TUNEFLEET_HOST", "HOST_APP_HOST"))
    """Address to listen on; any address but loopback makes the server reachable for others, who need a key."""
    port: int = Field(
        default=8000, ge=0, le=65535, validation_alias=variable("TUNEFLEET_PORT", "HOST_APP_PORT", "PORT")
    )
    """Port to listen on; 0 selects a free one."""
    shared_token: SecretStr | None = Field(
        default=None, validation_alias=variable("TUNEFLEET_SHARED_TOKEN", "ORCHESTRATOR_TOKEN")
    )
    """Shared secret that is valid as an admin key while it is set, for clients that share one token; all other keys
    remain valid."""
    artifacts: str | None = Field(default=None, pattern=_PLACE, validation_alias=variable("TUNEFLEET_ARTIFACTS"))
    """Artifact storage: `s3://BUCKET/PREFIX` (extra `s3`), `gs://BUCKET/PREFIX` (extra `gcs`), `az://CONTAINER/PREFIX`
    (extra `azure`), `file:///FOLDER` (shared by several servers); default: `artifacts` in the data folder."""
    s3_endpoint: str | None = Field(default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_S3_ENDPOINT"))
    """URL of an S3-compatible service; default: Amazon S3."""
    s3_public_endpoint: str | None = Field(
        default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_S3_PUBLIC_ENDPOINT")
    )
    """Public URL of that service for workers and users, if it differs; signed URLs use it."""
    s3_region: str | None = Field(default=None, validation_alias=variable("AWS_REGION", "AWS_DEFAULT_REGION"))
    """Region of the bucket."""
    s3_access_key: SecretStr | None = Field(default=None, validation_alias=variable("AWS_ACCESS_KEY_ID"))
    """Access key for the bucket; default: from `AWS_PROFILE`, AWS config files or the machine's role."""
    s3_secret_key: SecretStr | None = Field(default=None, validation_alias=variable("AWS_SECRET_ACCESS_KEY"))
    """Secret of that access key."""
    s3_session_token: SecretStr | None = Field(default=None, validation_alias=variable("AWS_SESSION_TOKEN"))
    """Session token of temporary credentials."""
    gcs_key_file: Path | None = Field(default=None, validation_alias=variable("GOOGLE_APPLICATION_CREDENTIALS"))
    """Service account key (JSON) for `gs://`; also signs URLs."""
    gcs_endpoint: str | None = Field(default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_GCS_ENDPOINT"))
    """URL of a Google Cloud Storage emulator; requests to it carry no credentials."""
    azure_connection: SecretStr | None = Field(
        default=None, validation_alias=variable("AZURE_STORAGE_CONNECTION_STRING")
    )
    """Connection string of the account for `az://`, including its key, which also signs URLs."""
    storage_limit_bytes: int | None = Field(
        default=None, gt=0, validation_alias=variable("TUNEFLEET_STORAGE_LIMIT_BYTES")
    )
    """Limit in bytes for all files together; uploads beyond it are rejected with 507. The server warns from 90% on."""
    garbage_grace_s: float = Field(default=3600.0, ge=0.0, validation_alias=variable("TUNEFLEET_GARBAGE_GRACE_S"))
    """Seconds for which an unreferenced file, or an unfinished upload to the object store, is kept before it is
    removed."""
    scrub_bytes_per_s: int = Field(default=4 << 20, ge=0, validation_alias=variable("TUNEFLEET_SCRUB_BYTES_PER_S"))
    """Bytes per second at which stored files are read in the background to detect disk corruption; 0 disables it."""
    task_log_bytes: int = Field(default=64 << 20, ge=1 << 16, validation_alias=variable("TUNEFLEET_TASK_LOG_BYTES"))
    """Bytes of each task's log to keep; a line marks a truncated log. The worker's own file keeps more, up to
    `TUNEFLEET_JOB_LOG_BYTES`."""
    series_points: int = Field(default=200_000, ge=1000, validation_alias=variable("TUNEFLEET_SERIES_POINTS"))
    """Metric points to keep per launch: the newest unchanged, older ones thinned evenly over the run."""
    direct_uploads: Literal["auto", "on", "off"] = Field(
        default="auto", validation_alias=variable("TUNEFLEET_DIRECT_UPLOADS")
    )
    """Whether workers upload large files directly to the object store: `auto`: yes, and a worker that cannot reach it
    uploads through the server instead; `on`: yes, and a worker that cannot reach it keeps the files until it can;
    `off`: all files pass through the server. No effect if files are stored in a folder."""
    direct_upload_bytes: int = Field(default=32 << 20, gt=0, validation_alias=variable("TUNEFLEET_DIRECT_UPLOAD_BYTES"))
    """Files of at least this size in bytes are uploaded directly to the object store; smaller ones through the
    server."""
    database_url: SecretStr | None = Field(default=None, validation_alias=variable("TUNEFLEET_DATABASE_URL"))
    """Database: `sqlite:///FILE`, for one server at a time, or, with the extra `postgres`,
    `postgresql://USER:PASSWORD@HOST:5432/DATABASE`; default: an SQLite file in the data folder."""
    synchronous: str = Field(default="FULL", pattern="^(FULL|NORMAL)$", validation_alias=variable("TUNEFLEET_SYNC"))
    """SQLite's `synchronous`: `FULL` survives a power failure, `NORMAL` only a killed process."""
    lost_after_s: float = Field(default=30.0, ge=1.0, validation_alias=variable("TUNEFLEET_LOST_AFTER_S"))
    """Seconds without contact after which a worker counts as lost and its tasks are rescheduled."""
    accept_within_s: float = Field(default=10.0, gt=0, validation_alias=variable("TUNEFLEET_ACCEPT_WITHIN_S"))
    """Seconds within which a worker must accept an offer before the task is offered again."""
    max_body_bytes: int = Field(default=8 << 20, gt=0, validation_alias=variable("TUNEFLEET_MAX_BODY_BYTES"))
    """Limit in bytes for a JSON or YAML body; uploaded files have `TUNEFLEET_MAX_UPLOAD_BYTES`."""
    max_upload_bytes: int = Field(default=1 << 40, gt=0, validation_alias=variable("TUNEFLEET_MAX_UPLOAD_BYTES"))
    """Limit in bytes for one uploaded file."""
    worker_selection: Literal["best_fit", "first_fit", "min_satisfying"] = Field(
        default="best_fit", validation_alias=variable("TUNEFLEET_WORKER_SELECTION", "ORCHESTRATOR_WORKER_SELECTION")
    )
    """Which of the eligible workers gets a task: `best_fit` weighs throughput against cost, `first_fit` takes the
    largest, `min_satisfying` the smallest."""
    lambda_inference: float = Field(
        default=0.4, ge=0, le=1, validation_alias=variable("TUNEFLEET_LAMBDA_INFERENCE", "SCHEDULER_LAMBDA_INFERENCE")
    )
    """Weight of throughput for inference with `best_fit`, from 0 to 1; cost has the remaining weight."""
    lambda_training: float = Field(
        default=0.8, ge=0, le=1, validation_alias=variable("TUNEFLEET_LAMBDA_TRAINING", "SCHEDULER_LAMBDA_TRAINING")
    )
    """Weight of throughput for training tasks."""
    lambda_other: float = Field(
        default=0.5, ge=0, le=1, validation_alias=variable("TUNEFLEET_LAMBDA_OTHER", "SCHEDULER_LAMBDA_OTHER")
    )
    """Weight of throughput for all other task types."""
    selection_jitter: float = Field(
        default=1e-3, ge=0, validation_alias=variable("TUNEFLEET_SELECTION_JITTER", "SCHEDULER_SELECTION_JITTER")
    )
    """Maximum random offset of a `best_fit` score, up or down, which spreads tasks over equal workers."""
    context_reuse: bool = Field(
        default=True, validation_alias=variable("TUNEFLEET_CONTEXT_REUSE", "ENABLE_CONTEXT_REUSE")
    )
    """Prefer workers that have the task's model and datasets in their cache."""
    cache_ttl_s: float = Field(
        default=3600.0, ge=0, validation_alias=variable("TUNEFLEET_CACHE_TTL_S", "WORKER_CACHE_TTL_SEC")
    )
    """Seconds for which a worker is assumed to have a model or dataset that a task used, unless it reports its
    cache."""
    stickiness: bool = Field(
        default=False, validation_alias=variable("TUNEFLEET_STICKINESS", "ENABLE_STAGE_WEIGHT_STICKINESS")
    )
    """Prefer the worker that has the files of an earlier stage; a training task waits a short time for it."""
    dispatch_mode: str = Field(
        default="adaptive", validation_alias=variable("TUNEFLEET_DISPATCH_MODE", "ORCHESTRATOR_DISPATCH_MODE")
    )
    """Dispatch mode; only `adaptive` is supported."""
    merge: bool = Field(default=True, validation_alias=variable("TUNEFLEET_TASK_MERGE", "ENABLE_TASK_MERGE"))
    """Coalesce equal queued tasks of one owner into one run, if the worker's executor supports it."""
    merge_largest: int = Field(
        default=4, ge=1, validation_alias=variable("TUNEFLEET_TASK_MERGE_MAX", "TASK_MERGE_MAX_BATCH_SIZE")
    )
    """Maximum number of tasks in one coalesced run, including the first."""
    elastic: bool = Field(default=True, validation_alias=variable("TUNEFLEET_ELASTIC", "ENABLE_ELASTIC_SCALING"))
    """Set idle workers to standby while the queue is short, and reactivate them when it grows. A worker on standby
    finishes its tasks and gets no new ones. The only worker that can run a queued task is never set to standby."""
    elastic_idle_s: float = Field(
        default=60.0, ge=0, validation_alias=variable("TUNEFLEET_ELASTIC_IDLE_S", "ELASTIC_AUTO_DISABLE_IDLE_SEC")
    )
    """Seconds for which a worker must be idle before it is set to standby."""
    elastic_enable_queue: int = Field(
        default=0,
        ge=0,
        validation_alias=variable("TUNEFLEET_ELASTIC_ENABLE_QUEUE", "ELASTIC_AUTO_ENABLE_QUEUE_THRESHOLD"),
    )
    """Queued tasks from which workers on standby are reactivated; with 0, one task is enough."""
    elastic_disable_queue: int = Field(
        default=0, ge=0, validation_alias=variable("TUNEFLEET_ELASTIC_DISABLE_QUEUE", "ELASTIC_AUTO_DISABLE_QUEUE_MAX")
    )
    """With more queued tasks than this, no worker is set to standby."""
    elastic_poll_s: float = Field(
        default=30.0, gt=0, validation_alias=variable("TUNEFLEET_ELASTIC_POLL_S", "ELASTIC_AUTO_POLL_INTERVAL_SEC")
    )
    """Seconds between checks for workers to set to standby."""
    elastic_cooldown_s: float | None = Field(
        default=None,
        ge=0,
        validation_alias=variable("TUNEFLEET_ELASTIC_COOLDOWN_S", "ELASTIC_AUTO_TOGGLE_COOLDOWN_SEC"),
    )
    """Seconds for which a reactivated worker stays active; a queued task reactivates a worker immediately. Default:
    twice the check interval, at least 60 s."""
    elastic_min_active: int = Field(
        default=1, ge=0, validation_alias=variable("TUNEFLEET_ELASTIC_MIN_ACTIVE", "ELASTIC_AUTO_MIN_ACTIVE_WORKERS")
    )
    """Minimum number of active workers; at least one."""
    elastic_enable_many: bool = Field(
        default=True, validation_alias=variable("TUNEFLEET_ELASTIC_ENABLE_SEVERAL", "ELASTIC_AUTO_ENABLE_MULTI_WORKERS")
    )
    """Reactivate several workers at a time, as many as the queue needs."""
    share_half_life_s: float = Field(default=6 * 3600.0, gt=0, validation_alias=variable("TUNEFLEET_SHARE_HALF_LIFE_S"))
    """Half-life, in seconds, of a project's past usage in the fair-share calculation."""
    usage_kept_days: float = Field(default=400.0, ge=62, validation_alias=variable("TUNEFLEET_USAGE_KEPT_DAYS"))
    """Days to keep the usage records of attempts; at least 62, which the monthly quotas need."""
    audit_kept_days: float = Field(default=400.0, gt=0, validation_alias=variable("TUNEFLEET_AUDIT_KEPT_DAYS"))
    """Days to keep the audit log."""
    hub_cache: Path | None = Field(default=None, validation_alias=variable("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"))
    """Hugging Face cache on the server's machine; the configurations of cached models are used to estimate the memory
    of a training task. Default: `hub` in `HF_HOME`."""
    hf_home: Path | None = Field(default=None, validation_alias=variable("HF_HOME"))
    """Hugging Face's home folder; default: `~/.cache/huggingface`."""
    hub_endpoint: str = Field(default="https://huggingface.co", validation_alias=variable("HF_ENDPOINT"))
    """Hub from which model configurations that are not in the cache are fetched."""
    hub_offline: bool = Field(default=False, validation_alias=variable("HF_HUB_OFFLINE"))
    """Send no requests to the Hub."""
    peer_url: str | None = Field(default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_PEER_URL"))
    """URL at which other servers on the same database reach this one; default: the address that it listens on, unless
    that is a wildcard address."""
    metrics: Literal["key", "open", "off"] = Field(default="key", validation_alias=variable("TUNEFLEET_METRICS"))
    """Access to the Prometheus metrics (`GET /metrics`): `key`: any key with read permission; `open`: everyone who can
    reach the server; `off`: no access, and metrics are not collected."""
    public_base_url: str | None = Field(
        default=None, validation_alias=variable("TUNEFLEET_PUBLIC_URL", "PUBLIC_BASE_URL")
    )
    """Public URL of the server, used in the links that it generates."""
    trusted_proxies: CommaList = Field(default=("127.0.0.1",), validation_alias=variable("TUNEFLEET_TRUSTED_PROXIES"))
    """Comma-separated addresses and networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` headers are
    trusted."""
    links_last_s: float = Field(default=7 * 86400.0, gt=0, validation_alias=variable("TUNEFLEET_LINKS_LAST_S"))
    """Seconds for which a signed link to a task's file is valid."""
    cors_origins: CommaList = Field(default=(), validation_alias=variable("TUNEFLEET_CORS_ORIGINS"))
    """Comma-separated web origins that may call the API from a browser."""
    url_allow: CommaList = Field(default=(), validation_alias=variable("TUNEFLEET_URL_ALLOW"))
    """Comma-separated hosts and networks in private ranges that notifications may be sent to."""
    smtp_url: SecretStr | None = Field(default=None, validation_alias=variable("TUNEFLEET_SMTP_URL"))
    """Mail server for notifications: `smtp://USER:PASSWORD@HOST:587` (STARTTLS if offered) or `smtps://…:465`; without
    it no mail is sent."""
    smtp_from: str = Field(default="tunefleet@localhost", validation_alias=variable("TUNEFLEET_SMTP_FROM"))
    """Sender address of notification mail."""

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            try:
                ipaddress.ip_network(each)
            except ValueError:
                raise ValueError(
                    f"{each!r} is neither an address nor a network such as 10.0.0.0/8; host names and * are not "
                    "allowed because clients could then forge their address"
                ) from None
        return value

    @field_validator("dispatch_mode")
    @classmethod
    def _adaptive(cls, value: str) -> str:
        if value in {"fixed_pipeline", "static_round_robin", "static_worker"}:
            raise ValueError(
                "this research baseline is not supported, because it ignores which workers are free; "
                "remove it, or use adaptive"
            )
        if value != "adaptive":
            raise ValueError("unknown mode; remove it, or use adaptive")
        return value

    @property
    def data_dir(self) -> Path:
        """The data folder, with `~` resolved."""
        return (self.data or self.home / "data").expanduser()
