"""Settings of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field, SecretStr, field_validator

from tunefleet.settings.base import CommaList, NodeSettings, ProcessSettings, RedisSettings, SharedGpuSettings, variable
from tunefleet.settings.environment import SECRET_PREFIX, SECRETS_DIR


class SecretSettings(ProcessSettings):
    """Secrets that tasks may refer to."""

    secrets_dir: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_SECRETS_DIR"))
    """Folder with one file per secret, readable by its owner only, to which tasks refer as `${secret:NAME}`;
    `TUNEFLEET_SECRET_<NAME>` variables take precedence."""
    secrets_limits: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_SECRETS_LIMITS"))
    """YAML file that limits secrets to projects and hosts, such as `WANDB: {projects: [vision], hosts:
    [api.wandb.ai]}`; secrets that it does not list are not limited."""


class CacheSettings(ProcessSettings):
    """Hugging Face's cache and token, mostly in its own variables."""

    hub_cache: Path | None = Field(default=None, validation_alias=variable("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"))
    """Cache of models and datasets from the Hub; default: `hub` in `HF_HOME`. Workers that have a task's model or
    dataset are preferred."""
    hf_home: Path | None = Field(default=None, validation_alias=variable("HF_HOME"))
    """Hugging Face's home folder; default: `huggingface` in `XDG_CACHE_HOME`."""
    cache_home: Path = Field(default=Path("~/.cache"), validation_alias=variable("XDG_CACHE_HOME"))
    """The user's cache folder."""
    hf_token: SecretStr | None = Field(default=None, validation_alias=variable("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"))
    """Hugging Face token for gated and private models and datasets, and for `push` tasks; passed to jobs."""
    llama_cpp: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_LLAMA_CPP"))
    """llama.cpp folder, whose `convert_hf_to_gguf.py` creates GGUF files; default: the one on the `PATH`."""

    @property
    def handed_on(self) -> dict[str, str]:
        """The variables that jobs get from these settings."""
        # Jobs do not read `.env`, so a value that is only set there must be passed explicitly.
        token = None if self.hf_token is None else self.hf_token.get_secret_value()
        folder = None if self.llama_cpp is None else str(self.llama_cpp.expanduser().absolute())
        trusted = None if self.ca_file is None else str(self.ca_file.expanduser().absolute())
        given = {"HF_TOKEN": token, "TUNEFLEET_LLAMA_CPP": folder, "TUNEFLEET_CA_FILE": trusted}
        return {name: value for name, value in given.items() if value}

    @property
    def hub_dir(self) -> Path:
        """Folder of the Hub cache."""
        return (self.hub_cache or (self.hf_home or self.cache_home / "huggingface") / "hub").expanduser()


class EngineSettings(ProcessSettings):
    """Settings of a process that uses inference engines."""

    engine_idle_s: float = Field(
        default=60.0, ge=0, validation_alias=variable("TUNEFLEET_ENGINE_IDLE_S", "WORKER_EXECUTOR_IDLE_CLEANUP_SEC")
    )
    """Seconds for which a model stays loaded after a task; the next task with the same model finds it loaded."""


class TransferSettings(ProcessSettings):
    """Transfer of files to and from a worker."""

    bandwidth_bytes_per_s: float | None = Field(
        default=None,
        gt=0,
        validation_alias=variable("TUNEFLEET_BANDWIDTH_BYTES_PER_S", "WORKER_NETWORK_BANDWIDTH_BYTES_PER_SEC"),
    )
    """Bandwidth limit, in bytes per second, for all uploads and downloads together; default: unlimited."""
    url_allow: CommaList = Field(default=(), validation_alias=variable("TUNEFLEET_URL_ALLOW"))
    """Comma-separated hosts and networks in private ranges that URLs in a workflow file may point to."""
    shared_dirs: CommaList = Field(default=(), validation_alias=variable("TUNEFLEET_SHARED_DIRS"))
    """Folders besides `TUNEFLEET_RESULTS_DIR`, such as a mount, that workflows may read and write by absolute path."""
    delivery_patience_s: float = Field(
        default=86_400.0, gt=0, validation_alias=variable("TUNEFLEET_DELIVERY_PATIENCE_S")
    )
    """Seconds for which a delivery to a URL of the workflow is retried before its task fails; only the delivery
    repeats."""
    archive_pigz: bool = Field(
        default=True, validation_alias=variable("TUNEFLEET_ARCHIVE_PIGZ", "MODEL_ARCHIVE_USE_PIGZ")
    )
    """Compress archives with `pigz`, on several cores, if it is installed."""
    archive_pigz_bin: str = Field(
        default="pigz", validation_alias=variable("TUNEFLEET_ARCHIVE_PIGZ_BIN", "MODEL_ARCHIVE_PIGZ_BIN")
    )
    """Name or path of `pigz`."""
    archive_pigz_threads: int | None = Field(
        default=None, ge=1, validation_alias=variable("TUNEFLEET_ARCHIVE_PIGZ_THREADS", "MODEL_ARCHIVE_PIGZ_THREADS")
    )
    """Threads of `pigz`; default: all cores."""
    archive_level: int | None = Field(
        default=None, validation_alias=variable("TUNEFLEET_ARCHIVE_LEVEL", "MODEL_ARCHIVE_COMPRESSION_LEVEL")
    )
    """Compression level, from 0 (none) to 9; default: the fastest level, since weights hardly compress."""
    cleanup_after_upload: bool = Field(
        default=False, validation_alias=variable("TUNEFLEET_CLEANUP_AFTER_UPLOAD", "MODEL_CLEANUP_AFTER_UPLOAD")
    )
    """Delete trained models, their archives and checkpoints from the worker once the server has the delivered files."""

    @field_validator("archive_level")
    @classmethod
    def _clamped(cls, value: int | None) -> int | None:
        return None if value is None else min(9, max(0, value))


class ApiSettings(ProcessSettings):
    """Default service of `api` tasks."""

    nebula_api_base_url: str | None = Field(
        default=None, validation_alias=variable("TUNEFLEET_API_TASK_URL", "NEBULA_API_BASE_URL")
    )
    """Base URL for `api` tasks without a URL; requests go to `/v1/chat/completions` below it."""
    nebula_api_token: SecretStr | None = Field(
        default=None, validation_alias=variable("TUNEFLEET_API_TASK_TOKEN", "NEBULA_API_TOKEN")
    )
    """Token for that service only; an `Authorization` header of the task takes precedence."""


class WorkerSettings(
    SharedGpuSettings,
    RedisSettings,
    SecretSettings,
    CacheSettings,
    TransferSettings,
    EngineSettings,
    ApiSettings,
    NodeSettings,
):
    """Settings of a worker."""

    addresses: ClassVar[Mapping[str, tuple[str, ...]]] = {
        # The server that assigns a worker's tasks can read every secret that they refer to.
        "TUNEFLEET_SERVER_URL": ("TUNEFLEET_WORKER_KEY", "ORCHESTRATOR_TOKEN", SECRET_PREFIX, SECRETS_DIR),
        "TUNEFLEET_REDIS_URL": (SECRET_PREFIX, SECRETS_DIR),
        "TUNEFLEET_API_TASK_URL": ("TUNEFLEET_API_TASK_TOKEN",),
    }

    server_url: str = Field(
        default="http://127.0.0.1:8000", validation_alias=variable("TUNEFLEET_SERVER_URL", "ORCHESTRATOR_BASE_URL")
    )
    """URL of the server that assigns tasks to the worker."""
    key: SecretStr | None = Field(default=None, validation_alias=variable("TUNEFLEET_WORKER_KEY", "ORCHESTRATOR_TOKEN"))
    """The worker's API key (role `worker`); not needed with `TUNEFLEET_REDIS_URL`."""
    results_dir: Path = Field(
        default=Path("./results_workers"), validation_alias=variable("TUNEFLEET_RESULTS_DIR", "RESULTS_DIR")
    )
    """The worker's folder: its identity, and one subfolder per task."""
    worker_id: str | None = Field(default=None, validation_alias=variable("TUNEFLEET_WORKER_ID", "WORKER_ID"))
    """The worker's name; default: generated once and stored in the results folder."""
    tags: CommaList = Field(default=(), validation_alias=variable("TUNEFLEET_WORKER_TAGS", "WORKER_TAGS"))
    """Comma-separated tags that a task may require. A worker with a tag that begins with `only:` runs only tasks that
    require that tag."""
    nodes_job: str | None = Field(default=None, validation_alias=variable("TUNEFLEET_NODES_JOB"))
    """Cluster job that started this worker; set by the server."""
    node: int = Field(default=0, ge=0, validation_alias=variable("TUNEFLEET_NODE"))
    """Index of the node within that job; set by the launcher."""
    nodes_idle_s: float | None = Field(default=None, gt=0, validation_alias=variable("TUNEFLEET_NODES_IDLE_S"))
    """Idle seconds after which a worker on a cluster node exits; default: it stays."""
    gang_address: str | None = Field(default=None, validation_alias=variable("TUNEFLEET_GANG_ADDRESS"))
    """Address at which other workers reach this one for multi-node training; default: its address in the network
    towards the server."""
    gang_ports: str = Field(
        default="0", pattern=r"^\d{1,5}(-\d{1,5})?$", validation_alias=variable("TUNEFLEET_GANG_PORTS")
    )
    """Rendezvous port of multi-node training, or a range such as `29500-29520`, on the first node; 0 selects any free
    port."""
    gang_join_s: float = Field(default=300.0, gt=0, validation_alias=variable("TUNEFLEET_GANG_JOIN_S"))
    """Seconds for which the nodes of a multi-node training wait for each other at the start."""
    heartbeat_interval_s: float = Field(
        default=30.0, gt=0, validation_alias=variable("TUNEFLEET_HEARTBEAT_INTERVAL_S", "HEARTBEAT_INTERVAL_SEC")
    )
    """Seconds between load reports; the worker's lease does not depend on them."""
    cost_per_hour: float = Field(
        default=1.0, ge=0, validation_alias=variable("TUNEFLEET_COST_PER_HOUR", "WORKER_COST_PER_HOUR")
    )
    """Cost of this worker per hour, in any currency; the scheduler weighs it against throughput."""
    job_slots: int = Field(default=1, ge=0, validation_alias=variable("TUNEFLEET_JOB_SLOTS"))
    """Maximum number of jobs that run at the same time; 0 accepts no training tasks."""
    light_slots: int = Field(default=32, ge=0, validation_alias=variable("TUNEFLEET_LIGHT_SLOTS"))
    """Maximum number of concurrent inline tasks, which need no separate process, such as `echo`."""
    warm_start: bool = Field(default=True, validation_alias=variable("TUNEFLEET_WARM_START"))
    """Keep the training libraries imported in a fork server, so that jobs start in under a second."""
    warm_idle_s: float = Field(default=1800.0, gt=0, validation_alias=variable("TUNEFLEET_WARM_IDLE_S"))
    """Seconds for which an unused warm process is kept."""
    torch_threads: int | None = Field(default=None, ge=1, validation_alias=variable("TUNEFLEET_TORCH_THREADS"))
    """CPU threads of a job; default: the machine's cores divided by its slots."""
    visible_gpus: str | None = Field(default=None, validation_alias=variable("CUDA_VISIBLE_DEVICES"))
    """GPUs that the worker may use, by index or UUID; default: all."""
    allow_code: bool = Field(default=False, validation_alias=variable("TUNEFLEET_ALLOW_CODE"))
    """Allow custom code of tasks to run on this worker: `command` and `python` tasks, functions as trainer or reward, a
    model's own code (`trust_remote_code`)."""
