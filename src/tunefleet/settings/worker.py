"""Settings of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field, SecretStr, field_validator

from tunefleet.settings.base import CommaList, MeetingSettings, ProcessSettings, SharedGpuSettings, variable
from tunefleet.settings.clusters import NodeSettings
from tunefleet.settings.environment import SECRET_PREFIX, SECRETS_DIR


class SecretSettings(ProcessSettings):
    """Where the secrets lie that tasks may name."""

    secrets_dir: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_SECRETS_DIR"))
    """A folder with one file for each secret that a task may name as `${secret:NAME}`, readable by its owner alone;
    `TUNEFLEET_SECRET_<NAME>` variables come first."""
    secrets_limits: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_SECRETS_LIMITS"))
    """A YAML file that says which projects and hosts a secret is for, such as `WANDB: {projects: [vision], hosts:
    [api.wandb.ai]}`; a secret that it does not name goes wherever a task sends it."""


class CacheSettings(ProcessSettings):
    """Where Hugging Face keeps what it has fetched, and what opens the rest; most variables are its own."""

    hub_cache: Path | None = Field(default=None, validation_alias=variable("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"))
    """Where models and datasets lie that were fetched; default: `hub` in `HF_HOME`. Workers that have what a task names
    are preferred."""
    hf_home: Path | None = Field(default=None, validation_alias=variable("HF_HOME"))
    """Hugging Face's folder; default: `huggingface` in `XDG_CACHE_HOME`."""
    cache_home: Path = Field(default=Path("~/.cache"), validation_alias=variable("XDG_CACHE_HOME"))
    """The user's folder for caches."""
    hf_token: SecretStr | None = Field(default=None, validation_alias=variable("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"))
    """Token of a Hugging Face account, which opens gated and private models and datasets; jobs get it."""
    llama_cpp: Path | None = Field(default=None, validation_alias=variable("TUNEFLEET_LLAMA_CPP"))
    """A folder of llama.cpp, whose `convert_hf_to_gguf.py` makes GGUF files; default: that of the `PATH`."""

    @property
    def handed_on(self) -> dict[str, str]:
        """What of it jobs get as variables, though it may stand in `.env` alone."""
        token = None if self.hf_token is None else self.hf_token.get_secret_value()
        folder = None if self.llama_cpp is None else str(self.llama_cpp.expanduser().absolute())
        trusted = None if self.ca_file is None else str(self.ca_file.expanduser().absolute())
        given = {"HF_TOKEN": token, "TUNEFLEET_LLAMA_CPP": folder, "TUNEFLEET_CA_FILE": trusted}
        return {name: value for name, value in given.items() if value}

    @property
    def hub_dir(self) -> Path:
        """Where models and datasets lie that were fetched."""
        return (self.hub_cache or (self.hf_home or self.cache_home / "huggingface") / "hub").expanduser()


class EngineSettings(ProcessSettings):
    """What a process needs that asks the engine of a model."""

    engine_idle_s: float = Field(
        default=60.0, ge=0, validation_alias=variable("TUNEFLEET_ENGINE_IDLE_S", "WORKER_EXECUTOR_IDLE_CLEANUP_SEC")
    )
    """How long a model stays loaded after the task that used it; a task that asks for the same model meanwhile finds it
    warm."""


class TransferSettings(ProcessSettings):
    """How files come to a worker and leave it."""

    bandwidth_bytes_per_s: float | None = Field(
        default=None, gt=0, validation_alias=variable("WORKER_NETWORK_BANDWIDTH_BYTES_PER_SEC")
    )
    """Holds results, archives, checkpoints and downloads to this speed, all together; default: as fast as it goes."""
    url_allow: CommaList = Field(default=(), validation_alias=variable("TUNEFLEET_URL_ALLOW"))
    """Hosts and networks in private ranges that an address in a document may name, separated by commas."""
    shared_dirs: CommaList = Field(default=(), validation_alias=variable("TUNEFLEET_SHARED_DIRS"))
    """Folders beside `RESULTS_DIR`, such as a mount, that a document may read from and write to by absolute path."""
    delivery_patience_s: float = Field(
        default=86_400.0, gt=0, validation_alias=variable("TUNEFLEET_DELIVERY_PATIENCE_S")
    )
    """How long a delivery to an address of the document is tried again before its task fails; nothing is run again."""
    archive_pigz: bool = Field(default=True, validation_alias=variable("MODEL_ARCHIVE_USE_PIGZ"))
    """Compress archives with `pigz`, on several cores, where it is installed."""
    archive_pigz_bin: str = Field(default="pigz", validation_alias=variable("MODEL_ARCHIVE_PIGZ_BIN"))
    """That program, by name or path."""
    archive_pigz_threads: int | None = Field(
        default=None, ge=1, validation_alias=variable("MODEL_ARCHIVE_PIGZ_THREADS")
    )
    """Cores that it takes; default: all."""
    archive_level: int | None = Field(default=None, validation_alias=variable("MODEL_ARCHIVE_COMPRESSION_LEVEL"))
    """0 (not at all) to 9; default: the fastest that compresses, since weights hardly shrink."""
    cleanup_after_upload: bool = Field(default=False, validation_alias=variable("MODEL_CLEANUP_AFTER_UPLOAD"))
    """Delete what was trained, its archive and its checkpoints from the worker once the server has what it delivers."""

    @field_validator("archive_level")
    @classmethod
    def _clamped(cls, value: int | None) -> int | None:
        return None if value is None else min(9, max(0, value))


class ApiSettings(ProcessSettings):
    """Whom an `api` task asks that names no address."""

    nebula_api_base_url: str | None = Field(default=None, validation_alias=variable("NEBULA_API_BASE_URL"))
    """The service that an `api` task asks which names no address; it answers at `/v1/chat/completions` below this."""
    nebula_api_token: SecretStr | None = Field(default=None, validation_alias=variable("NEBULA_API_TOKEN"))
    """Sent to that service, and to nobody else, unless the task has an `Authorization` header of its own."""


class WorkerSettings(
    SharedGpuSettings,
    MeetingSettings,
    SecretSettings,
    CacheSettings,
    TransferSettings,
    EngineSettings,
    ApiSettings,
    NodeSettings,
):
    """Settings of a worker."""

    addresses: ClassVar[Mapping[str, tuple[str, ...]]] = {
        # Whoever gives a worker its tasks may have the secrets that they name.
        "ORCHESTRATOR_BASE_URL": ("TUNEFLEET_WORKER_KEY", "ORCHESTRATOR_TOKEN", SECRET_PREFIX, SECRETS_DIR),
        "REDIS_URL": (SECRET_PREFIX, SECRETS_DIR),
        "NEBULA_API_BASE_URL": ("NEBULA_API_TOKEN",),
    }

    server_url: str = Field(default="http://127.0.0.1:8000", validation_alias=variable("ORCHESTRATOR_BASE_URL"))
    """The server that the worker takes its tasks from."""
    key: SecretStr | None = Field(default=None, validation_alias=variable("TUNEFLEET_WORKER_KEY", "ORCHESTRATOR_TOKEN"))
    """The worker's API key (role `worker`); with `REDIS_URL` it needs none."""
    results_dir: Path = Field(default=Path("./results_workers"), validation_alias=variable("RESULTS_DIR"))
    """The worker's folder: its identity, and one folder for each task."""
    worker_id: str | None = Field(default=None, validation_alias=variable("WORKER_ID"))
    """The worker's name; default: made once and kept in the results folder."""
    tags: CommaList = Field(default=(), validation_alias=variable("WORKER_TAGS"))
    """Tags that a task may ask for, separated by commas. A worker with a tag that begins with `only:` takes no task
    that does not ask for it."""
    nodes_job: str | None = Field(default=None, validation_alias=variable("TUNEFLEET_NODES_JOB"))
    """The job of a cluster that has started this worker; the server sets it."""
    node: int = Field(default=0, ge=0, validation_alias=variable("TUNEFLEET_NODE"))
    """The number of the node among those of that job; what starts the worker there sets it."""
    nodes_idle_s: float | None = Field(default=None, gt=0, validation_alias=variable("TUNEFLEET_NODES_IDLE_S"))
    """A worker on a cluster's node leaves after it has had nothing to do for so long; default: it stays."""
    gang_address: str | None = Field(default=None, validation_alias=variable("TUNEFLEET_GANG_ADDRESS"))
    """Where other workers reach this one for a training on several nodes; default: its address in the network towards
    the server."""
    gang_ports: str = Field(
        default="0", pattern=r"^\d{1,5}(-\d{1,5})?$", validation_alias=variable("TUNEFLEET_GANG_PORTS")
    )
    """Port, or range such as `29500-29520`, where the first node of such a training waits for the others; 0 is any
    free one."""
    gang_join_s: float = Field(default=300.0, gt=0, validation_alias=variable("TUNEFLEET_GANG_JOIN_S"))
    """How long the nodes of such a training wait for each other when it starts."""
    heartbeat_interval_s: float = Field(default=30.0, gt=0, validation_alias=variable("HEARTBEAT_INTERVAL_SEC"))
    """Seconds between two reports of load; the lease does not hang on them."""
    cost_per_hour: float = Field(default=1.0, ge=0, validation_alias=variable("WORKER_COST_PER_HOUR"))
    """What an hour of this worker costs, in whatever currency; placement weighs it against throughput."""
    job_slots: int = Field(default=1, ge=0, validation_alias=variable("TUNEFLEET_JOB_SLOTS"))
    """Trainings at a time."""
    light_slots: int = Field(default=32, ge=0, validation_alias=variable("TUNEFLEET_LIGHT_SLOTS"))
    """Tasks at a time of kinds that need no process of their own, such as `echo`."""
    warm_start: bool = Field(default=True, validation_alias=variable("TUNEFLEET_WARM_START"))
    """Keep the training libraries imported in a fork server, so that a job starts in under a second."""
    warm_idle_s: float = Field(default=1800.0, gt=0, validation_alias=variable("TUNEFLEET_WARM_IDLE_S"))
    """How long an unused warm process is kept."""
    torch_threads: int | None = Field(default=None, ge=1, validation_alias=variable("TUNEFLEET_TORCH_THREADS"))
    """CPU threads of a training; default: the cores of the machine, shared among its slots."""
    visible_gpus: str | None = Field(default=None, validation_alias=variable("CUDA_VISIBLE_DEVICES"))
    """The GPUs that the worker may use, by index or UUID; default: all."""
    allow_code: bool = Field(default=False, validation_alias=variable("TUNEFLEET_ALLOW_CODE"))
    """Whether code that a task brings may run on this worker: `command` and `python` tasks, functions as trainer or
    reward, a model's own code (`trust_remote_code`)."""
