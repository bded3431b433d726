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
    """Folder with one file per secret, readable only by its owner. Tasks refer to a secret as `${secret:NAME}`.
    `TUNEFLEET_SECRET_<NAME>` variables take precedence."""
    secrets_limits: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_SECRETS_LIMITS"))
    """YAML file that restricts secrets to projects and hosts, such as `WANDB: {projects: [vision], hosts:
    [api.wandb.ai]}`. Secrets not listed in it are unrestricted."""


class CacheSettings(ProcessSettings):
    """Hugging Face's cache and token, mostly in its own variables."""

    hub_cache: Path | None = Field(default=None, validation_alias=variable("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"))
    """Cache for models and datasets from the Hub. The scheduler prefers workers that have a task's model or dataset
    cached. Default: `hub` in `HF_HOME`."""
    hf_home: Path | None = Field(default=None, validation_alias=variable("HF_HOME"))
    """Hugging Face's home folder. Default: `huggingface` in `XDG_CACHE_HOME`."""
    cache_home: Path = Field(default=Path("~/.cache"), validation_alias=variable("XDG_CACHE_HOME"))
    """The user's cache folder."""
    hf_token: SecretStr | None = Field(default=None, validation_alias=variable("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"))
    """Hugging Face token for gated and private models and datasets, and for `push` tasks. It is passed on to jobs."""
    llama_cpp: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_LLAMA_CPP"))
    """llama.cpp folder with `convert_hf_to_gguf.py`, which creates GGUF files. Default: the one on the `PATH`, then the
    environment `gguf`."""

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
    """Seconds to keep a model loaded after a task, so that the next task with the same model can reuse it."""


class TransferSettings(ProcessSettings):
    """Transfer of files to and from a worker."""

    bandwidth_bytes_per_s: float | None = Field(
        default=None,
        gt=0,
        validation_alias=variable("TUNEFLEET_BANDWIDTH_BYTES_PER_S", "WORKER_NETWORK_BANDWIDTH_BYTES_PER_SEC"),
    )
    """Bandwidth limit for all uploads and downloads together, in bytes per second. Default: unlimited."""
    url_allow: CommaList = Field(default=(), validation_alias=variable("TUNEFLEET_URL_ALLOW"))
    """Comma-separated hosts and networks in private ranges that URLs in workflow files may point to."""
    shared_dirs: CommaList = Field(default=(), validation_alias=variable("TUNEFLEET_SHARED_DIRS"))
    """Folders besides `TUNEFLEET_RESULTS_DIR`, such as a mount, that workflows may read and write by absolute path."""
    delivery_patience_s: float = Field(
        default=86_400.0, gt=0, validation_alias=variable("TUNEFLEET_DELIVERY_PATIENCE_S")
    )
    """Seconds to retry delivering a result to a URL in the workflow file before the task fails. Only the delivery is
    repeated."""
    archive_pigz: bool = Field(
        default=True, validation_alias=variable("TUNEFLEET_ARCHIVE_PIGZ", "MODEL_ARCHIVE_USE_PIGZ")
    )
    """Compress archives on several cores with `pigz`, if it is installed."""
    archive_pigz_bin: str = Field(
        default="pigz", validation_alias=variable("TUNEFLEET_ARCHIVE_PIGZ_BIN", "MODEL_ARCHIVE_PIGZ_BIN")
    )
    """Name or path of `pigz`."""
    archive_pigz_threads: int | None = Field(
        default=None, ge=1, validation_alias=variable("TUNEFLEET_ARCHIVE_PIGZ_THREADS", "MODEL_ARCHIVE_PIGZ_THREADS")
    )
    """Number of `pigz` threads. Default: all cores."""
    archive_level: int | None = Field(
        default=None, validation_alias=variable("TUNEFLEET_ARCHIVE_LEVEL", "MODEL_ARCHIVE_COMPRESSION_LEVEL")
    )
    """Compression level, from 0 (none) to 9. Default: the fastest level, because model weights hardly compress."""
    cleanup_after_upload: bool = Field(
        default=False, validation_alias=variable("TUNEFLEET_CLEANUP_AFTER_UPLOAD", "MODEL_CLEANUP_AFTER_UPLOAD")
    )
    """Delete trained models, their archives and checkpoints from the worker once the server has received the files."""

    @field_validator("archive_level")
    @classmethod
    def _clamped(cls, value: int | None) -> int | None:
        return None if value is None else min(9, max(0, value))


class ApiSettings(ProcessSettings):
    """Default service of `api` tasks."""

    nebula_api_base_url: str | None = Field(
        default=None, validation_alias=variable("TUNEFLEET_API_TASK_URL", "NEBULA_API_BASE_URL")
    )
    """Base URL for `api` tasks that specify no URL. Requests go to `/v1/chat/completions` under it."""
    nebula_api_token: SecretStr | None = Field(
        default=None, validation_alias=variable("TUNEFLEET_API_TASK_TOKEN", "NEBULA_API_TOKEN")
    )
    """Token for that service only. An `Authorization` header set by the task takes precedence."""


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
    """URL of the server that the worker gets its tasks from."""
    key: SecretStr | None = Field(default=None, validation_alias=variable("TUNEFLEET_WORKER_KEY", "ORCHESTRATOR_TOKEN"))
    """The worker's API key (role `worker`). Not needed with `TUNEFLEET_REDIS_URL`."""
    results_dir: Path = Field(
        default=Path("./results_workers"), validation_alias=variable("TUNEFLEET_RESULTS_DIR", "RESULTS_DIR")
    )
    """The worker's folder, with its identity and one subfolder per task."""
    worker_id: str | None = Field(default=None, validation_alias=variable("TUNEFLEET_WORKER_ID", "WORKER_ID"))
    """The worker's name. Default: generated once and stored in the results folder."""
    tags: CommaList = Field(default=(), validation_alias=variable("TUNEFLEET_WORKER_TAGS", "WORKER_TAGS"))
    """Comma-separated tags that tasks can require. A worker with a tag that starts with `only:` runs only tasks that
    require this tag."""
    nodes_job: str | None = Field(default=None, validation_alias=variable("TUNEFLEET_NODES_JOB"))
    """Cluster job that started this worker. Set by the server."""
    node: int = Field(default=0, ge=0, validation_alias=variable("TUNEFLEET_NODE"))
    """Index of the node within that job. Set by the launcher."""
    nodes_idle_s: float | None = Field(default=None, gt=0, validation_alias=variable("TUNEFLEET_NODES_IDLE_S"))
    """Seconds of idling after which a worker on a cluster node exits. Default: it does not exit."""
    gang_address: str | None = Field(default=None, validation_alias=variable("TUNEFLEET_GANG_ADDRESS"))
    """Address where other workers reach this one for multi-node training. Default: its address on the network that
    leads to the server."""
    gang_ports: str = Field(
        default="0", pattern=r"^\d{1,5}(-\d{1,5})?$", validation_alias=variable("TUNEFLEET_GANG_PORTS")
    )
    """Rendezvous port for multi-node training on the first node, or a range such as `29500-29520`; 0 selects any free
    port."""
    gang_join_s: float = Field(default=300.0, gt=0, validation_alias=variable("TUNEFLEET_GANG_JOIN_S"))
    """Seconds that the nodes of a multi-node run wait for each other at the start."""
    heartbeat_interval_s: float = Field(
        default=30.0, gt=0, validation_alias=variable("TUNEFLEET_HEARTBEAT_INTERVAL_S", "HEARTBEAT_INTERVAL_SEC")
    )
    """Seconds between load reports. The worker's lease does not depend on them."""
    cost_per_hour: float = Field(
        default=1.0, ge=0, validation_alias=variable("TUNEFLEET_COST_PER_HOUR", "WORKER_COST_PER_HOUR")
    )
    """Cost of this worker per hour, in any currency. The scheduler weighs it against throughput."""
    job_slots: int = Field(default=1, ge=0, validation_alias=variable("TUNEFLEET_JOB_SLOTS"))
    """Maximum number of concurrent jobs; with 0, the worker accepts no training tasks."""
    light_slots: int = Field(default=32, ge=0, validation_alias=variable("TUNEFLEET_LIGHT_SLOTS"))
    """Maximum number of concurrent inline tasks, such as `echo`, which run without a separate process."""
    warm_start: bool = Field(default=True, validation_alias=variable("TUNEFLEET_WARM_START"))
    """Keep a fork server with the training libraries imported, so that jobs start in under a second."""
    warm_idle_s: float = Field(default=1800.0, gt=0, validation_alias=variable("TUNEFLEET_WARM_IDLE_S"))
    """Seconds to keep an unused warm process."""
    torch_threads: int | None = Field(default=None, ge=1, validation_alias=variable("TUNEFLEET_TORCH_THREADS"))
    """CPU threads per job. Default: the machine's cores divided by the worker's job slots."""
    visible_gpus: str | None = Field(default=None, validation_alias=variable("CUDA_VISIBLE_DEVICES"))
    """GPUs the worker may use, by index or UUID. Default: all."""
    allow_code: bool = Field(default=False, validation_alias=variable("TUNEFLEET_ALLOW_CODE"))
    """Allow tasks to run custom code on this worker: `command` and `python` tasks, functions used as trainer or reward,
    and code that comes with a model (`trust_remote_code`)."""
