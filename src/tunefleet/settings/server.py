"""Settings of the server."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Literal

from pydantic import Field, SecretStr, field_validator

from tunefleet.settings.base import CommaList, MeetingSettings, TlsSettings, variable
from tunefleet.settings.clusters import ClusterSettings

_PLACE: Final = r"^((s3|gs|az)://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[A-Za-z0-9!_.*'()/-]*)?|file:///[^?#]+)$"
_WEB: Final = r"^https?://[^/]"


class ServerSettings(MeetingSettings, TlsSettings, ClusterSettings):
    """Settings of the server."""

    addresses: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "TUNEFLEET_S3_ENDPOINT": ("AWS_SECRET_ACCESS_KEY",),
        "TUNEFLEET_RAY_ADDRESS": ("TUNEFLEET_RAY_TOKEN",),
    }

    data: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_DATA"))
    """The server's folder: database, artifacts, first keys; default: `data` in `TUNEFLEET_HOME`. One server at a
    time."""
    host: str = Field(default="127.0.0.1", validation_alias=variable("TUNEFLEET_HOST", "HOST_APP_HOST"))
    """The address to listen on; anything but loopback makes the server reachable by others, who need a key."""
    port: int = Field(
        default=8000, ge=0, le=65535, validation_alias=variable("TUNEFLEET_PORT", "HOST_APP_PORT", "PORT")
    )
    """The port to listen on; 0 takes a free one."""
    shared_token: SecretStr | None = Field(default=None, validation_alias=variable("ORCHESTRATOR_TOKEN"))
    """A secret that is good as an admin's key for as long as it is set, for clients that share one token; beside it
    every other key works as before."""
    artifacts: str | None = Field(default=None, pattern=_PLACE, validation_alias=variable("TUNEFLEET_ARTIFACTS"))
    """Where files are kept: `s3://BUCKET/PREFIX` (extra `s3`), `gs://BUCKET/PREFIX` (extra `gcs`), `az://CONTAINER/PREFIX`
    (extra `azure`), `file:///FOLDER` (one that several servers share); default: `artifacts` in the data folder."""
    s3_endpoint: str | None = Field(default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_S3_ENDPOINT"))
    """The URL of an S3 service that is not Amazon's."""
    s3_public_endpoint: str | None = Field(
        default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_S3_PUBLIC_ENDPOINT")
    )
    """The URL under which workers and people reach that service, if it is another one; links lead there."""
    s3_region: str | None = Field(default=None, validation_alias=variable("AWS_REGION", "AWS_DEFAULT_REGION"))
    """The bucket's region."""
    s3_access_key: SecretStr | None = Field(default=None, validation_alias=variable("AWS_ACCESS_KEY_ID"))
    """The server's key for the bucket; default: what `AWS_PROFILE`, Amazon's files or the machine's role give."""
    s3_secret_key: SecretStr | None = Field(default=None, validation_alias=variable("AWS_SECRET_ACCESS_KEY"))
    """The secret that belongs to it."""
    s3_session_token: SecretStr | None = Field(default=None, validation_alias=variable("AWS_SESSION_TOKEN"))
    """The token that belongs to both, if they are temporary."""
    gcs_key_file: Path | None = Field(default=None, validation_alias=variable("GOOGLE_APPLICATION_CREDENTIALS"))
    """Key of a service account (JSON) for `gs://`; links are signed with it."""
    gcs_endpoint: str | None = Field(default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_GCS_ENDPOINT"))
    """The URL of an emulator of Google's storage, which is asked without a key."""
    azure_connection: SecretStr | None = Field(
        default=None, validation_alias=variable("AZURE_STORAGE_CONNECTION_STRING")
    )
    """The account's connection string for `az://`, with its key; links are signed with it."""
    storage_limit_bytes: int | None = Field(
        default=None, gt=0, validation_alias=variable("TUNEFLEET_STORAGE_LIMIT_BYTES")
    )
    """Limit for all files together; uploads beyond it are refused with 507. From 90 % on the server warns."""
    garbage_grace_s: float = Field(default=3600.0, ge=0.0, validation_alias=variable("TUNEFLEET_GARBAGE_GRACE_S"))
    """How long a file is kept before anything refers to it, and an upload to the object store with which nobody goes
    on."""
    scrub_bytes_per_s: int = Field(default=4 << 20, ge=0, validation_alias=variable("TUNEFLEET_SCRUB_BYTES_PER_S"))
    """How fast stored files are read in the background, to find what a disk has damaged; 0: not at all."""
    task_log_bytes: int = Field(default=64 << 20, ge=1 << 16, validation_alias=variable("TUNEFLEET_TASK_LOG_BYTES"))
    """How much of each task's log is kept; a line says so where more came. The worker's own file has more of it, up to
    `TUNEFLEET_JOB_LOG_BYTES`."""
    series_points: int = Field(default=200_000, ge=1000, validation_alias=variable("TUNEFLEET_SERIES_POINTS"))
    """How many points of a launch's series are kept: the newest as they came, older ones evenly spread over the run."""
    direct_uploads: Literal["auto", "on", "off"] = Field(
        default="auto", validation_alias=variable("TUNEFLEET_DIRECT_UPLOADS")
    )
    """Whether workers send large files to the object store themselves: `auto`: yes, and where a worker cannot reach it,
    it says so and sends them through the server; `on`: yes, and a worker that cannot reach it keeps them until it can;
    `off`: all files pass through the server. Of no effect where files are kept in a folder."""
    direct_upload_bytes: int = Field(default=32 << 20, gt=0, validation_alias=variable("TUNEFLEET_DIRECT_UPLOAD_BYTES"))
    """Files from this size on go to the object store themselves; smaller ones pass through the server."""
    database_url: SecretStr | None = Field(default=None, validation_alias=variable("TUNEFLEET_DATABASE_URL"))
    """Where the truth is kept: `sqlite:///FILE`, which one server at a time opens, or, with the extra `postgres`,
    `postgresql://USER:PASSWORD@HOST:5432/DATABASE`; default: an SQLite file in the data folder."""
    synchronous: str = Field(default="FULL", pattern="^(FULL|NORMAL)$", validation_alias=variable("TUNEFLEET_SYNC"))
    """SQLite's `synchronous`: `FULL` survives a power cut, `NORMAL` a killed process."""
    lost_after_s: float = Field(default=30.0, ge=1.0, validation_alias=variable("TUNEFLEET_LOST_AFTER_S"))
    """Silence after which a worker is given up and its tasks are placed anew."""
    accept_within_s: float = Field(default=10.0, gt=0, validation_alias=variable("TUNEFLEET_ACCEPT_WITHIN_S"))
    """How long a worker may take to accept an offer before the task is offered again."""
    max_body_bytes: int = Field(default=8 << 20, gt=0, validation_alias=variable("TUNEFLEET_MAX_BODY_BYTES"))
    """Limit for a JSON or YAML body; files are streamed and have the next limit."""
    max_upload_bytes: int = Field(default=1 << 40, gt=0, validation_alias=variable("TUNEFLEET_MAX_UPLOAD_BYTES"))
    """Limit for one uploaded file."""
    worker_selection: Literal["best_fit", "first_fit", "min_satisfying"] = Field(
        default="best_fit", validation_alias=variable("ORCHESTRATOR_WORKER_SELECTION")
    )
    """Which of the workers that fit gets a task: `best_fit` weighs throughput against cost, `first_fit` takes the
    largest, `min_satisfying` the smallest."""
    lambda_inference: float = Field(default=0.4, ge=0, le=1, validation_alias=variable("SCHEDULER_LAMBDA_INFERENCE"))
    """What throughput weighs for inference with `best_fit`; the rest is what cost weighs."""
    lambda_training: float = Field(default=0.8, ge=0, le=1, validation_alias=variable("SCHEDULER_LAMBDA_TRAINING"))
    """The same for trainings."""
    lambda_other: float = Field(default=0.5, ge=0, le=1, validation_alias=variable("SCHEDULER_LAMBDA_OTHER"))
    """The same for all other kinds."""
    selection_jitter: float = Field(default=1e-3, ge=0, validation_alias=variable("SCHEDULER_SELECTION_JITTER"))
    """How far a `best_fit` score is moved, up or down, so that equal workers are spread."""
    context_reuse: bool = Field(default=True, validation_alias=variable("ENABLE_CONTEXT_REUSE"))
    """Prefer workers that have the task's model and datasets."""
    cache_ttl_s: float = Field(default=3600.0, ge=0, validation_alias=variable("WORKER_CACHE_TTL_SEC"))
    """How long a worker that was given a model or dataset counts as having it, unless it says so itself."""
    stickiness: bool = Field(default=False, validation_alias=variable("ENABLE_STAGE_WEIGHT_STICKINESS"))
    """Prefer the worker that holds the files of an earlier stage; a training waits a little for it."""
    dispatch_mode: str = Field(default="adaptive", validation_alias=variable("ORCHESTRATOR_DISPATCH_MODE"))
    """How tasks are handed out; `adaptive` alone is supported."""
    merge: bool = Field(default=True, validation_alias=variable("ENABLE_TASK_MERGE"))
    """Run equal waiting tasks of one owner as one, where the worker's executor can."""
    merge_largest: int = Field(default=4, ge=1, validation_alias=variable("TASK_MERGE_MAX_BATCH_SIZE"))
    """How many tasks may run as one, the first included."""
    elastic: bool = Field(default=True, validation_alias=variable("ENABLE_ELASTIC_SCALING"))
    """Let idle workers rest while the queue is short, and come back when it grows; a resting worker runs on and gets
    nothing new. Never rests who alone can run a task that waits."""
    elastic_idle_s: float = Field(default=60.0, ge=0, validation_alias=variable("ELASTIC_AUTO_DISABLE_IDLE_SEC"))
    """How long a worker must have had nothing to do before it rests."""
    elastic_enable_queue: int = Field(default=0, ge=0, validation_alias=variable("ELASTIC_AUTO_ENABLE_QUEUE_THRESHOLD"))
    """How many tasks must wait for resting workers to come back; with 0 one is enough."""
    elastic_disable_queue: int = Field(default=0, ge=0, validation_alias=variable("ELASTIC_AUTO_DISABLE_QUEUE_MAX"))
    """With more waiting tasks than this nobody is sent to rest."""
    elastic_poll_s: float = Field(default=30.0, gt=0, validation_alias=variable("ELASTIC_AUTO_POLL_INTERVAL_SEC"))
    """Time between two looks for workers that may rest."""
    elastic_cooldown_s: float | None = Field(
        default=None, ge=0, validation_alias=variable("ELASTIC_AUTO_TOGGLE_COOLDOWN_SEC")
    )
    """How long a worker that was called back stays before it may rest again; a waiting task calls one back at once;
    default: twice the time between two looks, at least 60 s."""
    elastic_min_active: int = Field(default=1, ge=0, validation_alias=variable("ELASTIC_AUTO_MIN_ACTIVE_WORKERS"))
    """How many workers never rest; at least one."""
    elastic_enable_many: bool = Field(default=True, validation_alias=variable("ELASTIC_AUTO_ENABLE_MULTI_WORKERS"))
    """Call back several workers at a time, as many as the queue needs."""
    share_half_life_s: float = Field(default=6 * 3600.0, gt=0, validation_alias=variable("TUNEFLEET_SHARE_HALF_LIFE_S"))
    """After this time, what a project has used counts half for its fair share of the fleet."""
    usage_kept_days: float = Field(default=400.0, ge=62, validation_alias=variable("TUNEFLEET_USAGE_KEPT_DAYS"))
    """How long it is kept what each attempt has used; at least two months, which the quotas need."""
    audit_kept_days: float = Field(default=400.0, gt=0, validation_alias=variable("TUNEFLEET_AUDIT_KEPT_DAYS"))
    """How long the audit log is kept."""
    hub_cache: Path | None = Field(default=None, validation_alias=variable("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"))
    """Where models lie on the server's machine that were fetched from a hub; their configurations say how much memory a
    training takes. Default: `hub` in `HF_HOME`."""
    hf_home: Path | None = Field(default=None, validation_alias=variable("HF_HOME"))
    """Hugging Face's folder; default: `~/.cache/huggingface`."""
    hub_endpoint: str = Field(default="https://huggingface.co", validation_alias=variable("HF_ENDPOINT"))
    """The hub that is asked for a configuration which is not in the cache."""
    hub_offline: bool = Field(default=False, validation_alias=variable("HF_HUB_OFFLINE"))
    """Ask no hub."""
    peer_url: str | None = Field(default=None, pattern=_WEB, validation_alias=variable("TUNEFLEET_PEER_URL"))
    """The URL under which other servers on the same database reach this one; default: the address that it listens on,
    unless that is all of them."""
    metrics: Literal["key", "open", "off"] = Field(default="key", validation_alias=variable("TUNEFLEET_METRICS"))
    """Who may read the server's figures for Prometheus (`GET /metrics`): `key`: whoever has a key that may read;
    `open`: everybody who reaches the server; `off`: nobody, and nothing is counted."""
    public_base_url: str | None = Field(default=None, validation_alias=variable("PUBLIC_BASE_URL"))
    """The URL under which others reach the server; used for links that it hands out."""
    trusted_proxies: CommaList = Field(default=("127.0.0.1",), validation_alias=variable("TUNEFLEET_TRUSTED_PROXIES"))
    """Addresses and networks of proxies, separated by commas, that are believed when they say by `X-Forwarded-For` and
    `X-Forwarded-Proto` who asks, and how."""
    links_last_s: float = Field(default=7 * 86400.0, gt=0, validation_alias=variable("TUNEFLEET_LINKS_LAST_S"))
    """How long a link to a task's file is good without a key."""
    cors_origins: CommaList = Field(default=(), validation_alias=variable("TUNEFLEET_CORS_ORIGINS"))
    """Web origins that may call the API from a browser, separated by commas."""
    url_allow: CommaList = Field(default=(), validation_alias=variable("TUNEFLEET_URL_ALLOW"))
    """Hosts and networks in private ranges that notifications may go to, separated by commas."""
    smtp_url: SecretStr | None = Field(default=None, validation_alias=variable("TUNEFLEET_SMTP_URL"))
    """The mail server for notifications: `smtp://USER:PASSWORD@HOST:587` (encrypted if it offers that) or
    `smtps://…:465`; without one no mail is sent."""
    smtp_from: str = Field(default="tunefleet@localhost", validation_alias=variable("TUNEFLEET_SMTP_FROM"))
    """The address that mail comes from."""

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            try:
                ipaddress.ip_network(each)
            except ValueError:
                raise ValueError(
                    f"{each!r} is no address and no network such as 10.0.0.0/8; a name or * would let anybody say "
                    "who they are"
                ) from None
        return value

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
        """The server's folder, with `~` resolved."""
        return (self.data or self.home / "data").expanduser()
