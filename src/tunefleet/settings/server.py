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
    """Data folder with the database, the artifacts and the initial keys. Only one server can use it at a time. Default:
    `data` in `TUNEFLEET_HOME`."""
    host: str = Field(default="127.0.0.1", validation_alias=variable("TUNEFLEET_HOST", "HOST_APP_HOST"))
    """Address to listen on. With any address but loopback, other machines can reach the server; their users need a
    key."""
    port: int = Field(
        default=8000, ge=0, le=65535, validation_alias=variable("TUNEFLEET_PORT", "HOST_APP_PORT", "PORT")
    )
    """Port to listen on; 0 selects a free port."""
    shared_token: SecretStr | None = Field(
        default=None, validation_alias=variable("TUNEFLEET_SHARED_TOKEN", "ORCHESTRATOR_TOKEN")
    )
    """Shared secret that works as an admin key while it is set, for clients that share one token. All other keys remain
    valid."""
    artifacts: str | None = Field(default=None, pattern=_PLACE, validation_alias=variable("TUNEFLEET_ARTIFACTS"))
    """Artifact storage: `s3://BUCKET/PREFIX` (extra `s3`), `gs://BUCKET/PREFIX` (extra `gcs`), `az://CONTAINER/PREFIX`
    (extra `azure`) or `file:///FOLDER` (can be shared by several servers). Default: `artifacts` in the data folder."""
    s3_endpoint: str | None = Field(default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_S3_ENDPOINT"))
    """URL of an S3-compatible service. Default: Amazon S3."""
    s3_public_endpoint: str | None = Field(
        default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_S3_PUBLIC_ENDPOINT")
    )
    """URL of that service for workers and users, if it differs from the one the server uses. Signed URLs contain it."""
    s3_region: str | None = Field(default=None, validation_alias=variable("AWS_REGION", "AWS_DEFAULT_REGION"))
    """Region of the bucket."""
    s3_access_key: SecretStr | None = Field(default=None, validation_alias=variable("AWS_ACCESS_KEY_ID"))
    """Access key for the bucket. Default: from `AWS_PROFILE`, the AWS config files or the machine's role."""
    s3_secret_key: SecretStr | None = Field(default=None, validation_alias=variable("AWS_SECRET_ACCESS_KEY"))
    """Secret for that access key."""
    s3_session_token: SecretStr | None = Field(default=None, validation_alias=variable("AWS_SESSION_TOKEN"))
    """Session token, for temporary credentials."""
    gcs_key_file: Path | None = Field(default=None, validation_alias=variable("GOOGLE_APPLICATION_CREDENTIALS"))
    """Service account key file (JSON) for `gs://`, which is also used to sign URLs."""
    gcs_endpoint: str | None = Field(default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_GCS_ENDPOINT"))
    """URL of a Google Cloud Storage emulator. Requests to it are sent without credentials."""
    azure_connection: SecretStr | None = Field(
        default=None, validation_alias=variable("AZURE_STORAGE_CONNECTION_STRING")
    )
    """Connection string for `az://`, including the account key, which is also used to sign URLs."""
    storage_limit_bytes: int | None = Field(
        default=None, gt=0, validation_alias=variable("TUNEFLEET_STORAGE_LIMIT_BYTES")
    )
    """Maximum total size of all files, in bytes. Uploads beyond it are rejected with 507; the server warns at 90%."""
    garbage_grace_s: float = Field(default=3600.0, ge=0.0, validation_alias=variable("TUNEFLEET_GARBAGE_GRACE_S"))
    """Seconds to keep unreferenced files, and unfinished uploads to the object store, before they are removed."""
    scrub_bytes_per_s: int = Field(default=4 << 20, ge=0, validation_alias=variable("TUNEFLEET_SCRUB_BYTES_PER_S"))
    """Rate, in bytes per second, at which stored files are read in the background to detect disk corruption; 0 disables
    it."""
    task_log_bytes: int = Field(default=64 << 20, ge=1 << 16, validation_alias=variable("TUNEFLEET_TASK_LOG_BYTES"))
    """Bytes to keep of each task's log; a line in the log marks where it was truncated. The log file on the worker
    keeps more, up to `TUNEFLEET_JOB_LOG_BYTES`."""
    series_points: int = Field(default=200_000, ge=1000, validation_alias=variable("TUNEFLEET_SERIES_POINTS"))
    """Metric points to keep in each series of a launch. The newest are kept unchanged; older ones are thinned evenly
    over the run."""
    direct_uploads: Literal["auto", "on", "off"] = Field(
        default="auto", validation_alias=variable("TUNEFLEET_DIRECT_UPLOADS")
    )
    """Whether workers upload large files directly to the object store. `auto`: yes, but a worker that cannot reach it
    uploads through the server; `on`: yes, and a worker that cannot reach it keeps the files until it can; `off`: all
    files go through the server. No effect if files are stored in a folder."""
    direct_upload_bytes: int = Field(default=32 << 20, gt=0, validation_alias=variable("TUNEFLEET_DIRECT_UPLOAD_BYTES"))
    """Minimum file size, in bytes, for direct uploads to the object store. Smaller files go through the server."""
    database_url: SecretStr | None = Field(default=None, validation_alias=variable("TUNEFLEET_DATABASE_URL"))
    """Database: `sqlite:///FILE` (one server at a time) or, with the extra `postgres`,
    `postgresql://USER:PASSWORD@HOST:5432/DATABASE`. Default: a SQLite file in the data folder."""
    synchronous: str = Field(default="FULL", pattern="^(FULL|NORMAL)$", validation_alias=variable("TUNEFLEET_SYNC"))
    """SQLite's `synchronous` mode: `FULL` survives a power failure, `NORMAL` only a killed process."""
    lost_after_s: float = Field(default=30.0, ge=1.0, validation_alias=variable("TUNEFLEET_LOST_AFTER_S"))
    """Seconds without contact after which a worker is considered lost and its tasks are rescheduled."""
    accept_within_s: float = Field(default=10.0, gt=0, validation_alias=variable("TUNEFLEET_ACCEPT_WITHIN_S"))
    """Seconds a worker has to accept an offer before the task is offered again."""
    max_body_bytes: int = Field(default=8 << 20, gt=0, validation_alias=variable("TUNEFLEET_MAX_BODY_BYTES"))
    """Maximum size of a JSON or YAML request body, in bytes. For file uploads, see `TUNEFLEET_MAX_UPLOAD_BYTES`."""
    max_upload_bytes: int = Field(default=1 << 40, gt=0, validation_alias=variable("TUNEFLEET_MAX_UPLOAD_BYTES"))
    """Maximum size of an uploaded file, in bytes."""
    worker_selection: Literal["best_fit", "first_fit", "min_satisfying"] = Field(
        default="best_fit", validation_alias=variable("TUNEFLEET_WORKER_SELECTION", "ORCHESTRATOR_WORKER_SELECTION")
    )
    """How to choose among the eligible workers: `best_fit` weighs throughput against cost, `first_fit` chooses the
    largest worker, `min_satisfying` the smallest."""
    lambda_inference: float = Field(
        default=0.4, ge=0, le=1, validation_alias=variable("TUNEFLEET_LAMBDA_INFERENCE", "SCHEDULER_LAMBDA_INFERENCE")
    )
    """Weight of throughput for inference tasks with `best_fit`, from 0 to 1. The rest is the weight of cost."""
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
    """Maximum random offset added to or subtracted from a `best_fit` score, to spread tasks over equal workers."""
    context_reuse: bool = Field(
        default=True, validation_alias=variable("TUNEFLEET_CONTEXT_REUSE", "ENABLE_CONTEXT_REUSE")
    )
    """Prefer workers that have the task's model and datasets in their cache."""
    cache_ttl_s: float = Field(
        default=3600.0, ge=0, validation_alias=variable("TUNEFLEET_CACHE_TTL_S", "WORKER_CACHE_TTL_SEC")
    )
    """Seconds after a task during which its worker is assumed to still have the model and datasets cached. Not used for
    workers that report their cache."""
    stickiness: bool = Field(
        default=False, validation_alias=variable("TUNEFLEET_STICKINESS", "ENABLE_STAGE_WEIGHT_STICKINESS")
    )
    """Prefer the worker that already has the files of an earlier stage. A training task waits for it for a short
    time."""
    dispatch_mode: str = Field(
        default="adaptive", validation_alias=variable("TUNEFLEET_DISPATCH_MODE", "ORCHESTRATOR_DISPATCH_MODE")
    )
    """Dispatch mode. Only `adaptive` is supported."""
    merge: bool = Field(default=True, validation_alias=variable("TUNEFLEET_TASK_MERGE", "ENABLE_TASK_MERGE"))
    """Merge equal queued tasks of the same owner into one run, if the worker's executor supports it."""
    merge_largest: int = Field(
        default=4, ge=1, validation_alias=variable("TUNEFLEET_TASK_MERGE_MAX", "TASK_MERGE_MAX_BATCH_SIZE")
    )
    """Maximum number of tasks in a merged run, including the first."""
    elastic: bool = Field(default=True, validation_alias=variable("TUNEFLEET_ELASTIC", "ENABLE_ELASTIC_SCALING"))
    """Put idle workers on standby while the queue is short, and reactivate them when it grows. A worker on standby
    finishes its tasks but gets no new ones. A worker that is the only one able to run a queued task is never put on
    standby."""
    elastic_idle_s: float = Field(
        default=60.0, ge=0, validation_alias=variable("TUNEFLEET_ELASTIC_IDLE_S", "ELASTIC_AUTO_DISABLE_IDLE_SEC")
    )
    """Seconds a worker must be idle before it is put on standby."""
    elastic_enable_queue: int = Field(
        default=0,
        ge=0,
        validation_alias=variable("TUNEFLEET_ELASTIC_ENABLE_QUEUE", "ELASTIC_AUTO_ENABLE_QUEUE_THRESHOLD"),
    )
    """Number of queued tasks at which workers on standby are reactivated; with 0, one task is enough."""
    elastic_disable_queue: int = Field(
        default=0, ge=0, validation_alias=variable("TUNEFLEET_ELASTIC_DISABLE_QUEUE", "ELASTIC_AUTO_DISABLE_QUEUE_MAX")
    )
    """Number of queued tasks above which no worker is put on standby."""
    elastic_poll_s: float = Field(
        default=30.0, gt=0, validation_alias=variable("TUNEFLEET_ELASTIC_POLL_S", "ELASTIC_AUTO_POLL_INTERVAL_SEC")
    )
    """Seconds between checks for workers to put on standby."""
    elastic_cooldown_s: float | None = Field(
        default=None,
        ge=0,
        validation_alias=variable("TUNEFLEET_ELASTIC_COOLDOWN_S", "ELASTIC_AUTO_TOGGLE_COOLDOWN_SEC"),
    )
    """Minimum seconds a reactivated worker stays active. Reactivation itself is immediate when a task is queued.
    Default: twice the check interval, at least 60 s."""
    elastic_min_active: int = Field(
        default=1, ge=0, validation_alias=variable("TUNEFLEET_ELASTIC_MIN_ACTIVE", "ELASTIC_AUTO_MIN_ACTIVE_WORKERS")
    )
    """Minimum number of active workers, at least 1."""
    elastic_enable_many: bool = Field(
        default=True, validation_alias=variable("TUNEFLEET_ELASTIC_ENABLE_SEVERAL", "ELASTIC_AUTO_ENABLE_MULTI_WORKERS")
    )
    """Reactivate as many workers at a time as the queue needs, not just one."""
    share_half_life_s: float = Field(default=6 * 3600.0, gt=0, validation_alias=variable("TUNEFLEET_SHARE_HALF_LIFE_S"))
    """Half-life of a project's past usage in the fair-share calculation, in seconds."""
    usage_kept_days: float = Field(default=400.0, ge=62, validation_alias=variable("TUNEFLEET_USAGE_KEPT_DAYS"))
    """Days to keep usage records of attempts. Monthly quotas require at least 62."""
    audit_kept_days: float = Field(default=400.0, gt=0, validation_alias=variable("TUNEFLEET_AUDIT_KEPT_DAYS"))
    """Days to keep the audit log."""
    hub_cache: Path | None = Field(default=None, validation_alias=variable("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"))
    """Hugging Face cache on the server's machine. The server reads the configurations of cached models to estimate the
    memory of training tasks. Default: `hub` in `HF_HOME`."""
    hf_home: Path | None = Field(default=None, validation_alias=variable("HF_HOME"))
    """Hugging Face's home folder. Default: `~/.cache/huggingface`."""
    hub_endpoint: str = Field(default="https://huggingface.co", validation_alias=variable("HF_ENDPOINT"))
    """Hub to download model configurations from when they are not in the cache."""
    hub_offline: bool = Field(default=False, validation_alias=variable("HF_HUB_OFFLINE"))
    """Hugging Face's offline mode: no requests are sent to the Hub."""
    peer_url: str | None = Field(default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_PEER_URL"))
    """URL where other servers on the same database can reach this one. Default: the address it listens on, unless that
    is a wildcard address."""
    metrics: Literal["key", "open", "off"] = Field(default="key", validation_alias=variable("TUNEFLEET_METRICS"))
    """Who can read the Prometheus metrics (`GET /metrics`). `key`: anyone with a key that has read permission; `open`:
    anyone who can reach the server; `off`: no one, and no metrics are collected."""
    public_base_url: str | None = Field(
        default=None, validation_alias=variable("TUNEFLEET_PUBLIC_URL", "PUBLIC_BASE_URL")
    )
    """Public URL of the server, used in the links it generates."""
    trusted_proxies: CommaList = Field(default=("127.0.0.1",), validation_alias=variable("TUNEFLEET_TRUSTED_PROXIES"))
    """Comma-separated addresses and networks of proxies. Only their `X-Forwarded-For` and `X-Forwarded-Proto` headers
    are trusted."""
    links_last_s: float = Field(default=7 * 86400.0, gt=0, validation_alias=variable("TUNEFLEET_LINKS_LAST_S"))
    """Seconds that signed links to a task's files stay valid."""
    cors_origins: CommaList = Field(default=(), validation_alias=variable("TUNEFLEET_CORS_ORIGINS"))
    """Comma-separated web origins that may call the API from a browser."""
    url_allow: CommaList = Field(default=(), validation_alias=variable("TUNEFLEET_URL_ALLOW"))
    """Comma-separated hosts and networks in private ranges that may receive notifications."""
    smtp_url: SecretStr | None = Field(default=None, validation_alias=variable("TUNEFLEET_SMTP_URL"))
    """Mail server for notifications: `smtp://USER:PASSWORD@HOST:587` (with STARTTLS if offered) or `smtps://…:465`. If
    unset, no mail is sent."""
    smtp_from: str = Field(default="tunefleet@localhost", validation_alias=variable("TUNEFLEET_SMTP_FROM"))
    """Sender address of notification mails."""

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
