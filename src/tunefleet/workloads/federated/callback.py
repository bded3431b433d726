"""`FederatedCallback`: makes any Hugging Face or TRL trainer with a LoRA adapter a worker of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from tunefleet.schemas.federated import UploadDtype
from tunefleet.workloads.federated.live_adapter import unwrap_peft
from tunefleet.workloads.federated.options import OnRefused, Options
from tunefleet.workloads.federated.participation import Participation
from tunefleet.workloads.federated.state import Progress
from tunefleet.workloads.federated.uploader import Sent

# URL and token by federation and worker. A Trainer that recreates its callbacks takes their arguments from a
# checkpoint, which contains no secrets.
_credentials: Final[dict[tuple[str, str], tuple[str, str | None]]] = {}
# Active participations of this process: an interrupted run leaves threads, which the next run must end.
_active: Final[dict[tuple[str, str], Participation]] = {}


class FederatedCallback(TrainerCallback, ExportableState):
    """Uploads the adapter every `sync_every_steps` steps, and copies each new global version into it during training.

        trainer = SFTTrainer(..., callbacks=[FederatedCallback("http://server:8000", "fed-…", "lab-3", token)])

    Uploads and downloads run in background threads and do not block training. New versions are copied in place between
    two steps, so the optimizer keeps its parameters. Requests to an unreachable server are retried while training
    continues. With several ranks, only rank 0 connects to the server, and all ranks copy the same values at the same
    step. Upload progress is saved in the trainer's checkpoints: a resumed run uploads nothing twice.

    Args:
        url: The server; `http://:TOKEN@host:8000` includes the token.
        job_id: The federation: its id or its number.
        worker_id: The name of this worker.
        token: The federation's token. Default: the one in the URL, then the key saved for the server.
        sync_every_steps: Optimizer steps between two uploads.
        upload_dtype: `fp32`, `bf16` (half the size), or `int8` (a quarter; with error feedback).
        reload: `replace` uses a version as it is; `mix(0.5)` averages it with the values trained since.
        optimizer_state: What a reload does with the optimizer state of the adapter: `keep`, `reset`, or `scale(0.5)`
            for the first moments.
        keep_as: Also keep each version as a frozen adapter with this name.
        adapter: The adapter of the model. Default: the active one.
        base_model: Name of the base model in uploads. Default: the name in the adapter's config.
        mu: FedProx: weight of the proximal term towards the global adapter. Default: the federation's setting.
        same_start: Initialize a new adapter with the same random factors on all workers of the federation.
        sequences_per_row: Number of sequences per data row. Default: 2 in TRL trainers for preference pairs, else 1.
        on_refused: If the server refuses this worker (invalid token, incompatible adapter, federation cancelled):
            `raise` ends training with the reason; `warn` warns once and continues training without the federation.
        wait_s: Time in seconds that each upload waits for the next version; 0 continues training.
        final_wait_s: Time in seconds that the end of training may wait for the last upload.
        max_bytes_per_s: Bandwidth limit of uploads and downloads.
        folder: Folder for files in transit. Default: `federated` in the trainer's `output_dir`.
        attempt: Number of this start of the worker's training run, from 1. Set it where a scheduler restarts runs:
            the server refuses updates of an earlier attempt once a later one has joined.

    Raises:
        InputError: If an argument is invalid.
    """

    def __init__(  # noqa: PLR0913 - what a user may ask for
        self,
        url: str,
        job_id: str | int,
        worker_id: str | int,
        token: str | None = None,
        sync_every_steps: int = 100,
        *,
        upload_dtype: UploadDtype = "fp32",
        reload: str = "replace",
        optimizer_state: str = "keep",
        keep_as: str | None = None,
        adapter: str | None = None,
        base_model: str | None = None,
        mu: float | None = None,
        same_start: bool = True,
        sequences_per_row: int | None = None,
        on_refused: OnRefused = "raise",
        wait_s: float = 0.0,
        final_wait_s: float = 60.0,
        max_bytes_per_s: float | None = None,
        folder: str | Path | None = None,
        attempt: int | None = None,
    ) -> None:
        member = (str(job_id), str(worker_id))
        # Only for the same server: a token must not be sent to another one.
        if token is None and member in _credentials and _without_token(_credentials[member][0]) == url:
            url, token = _credentials[member]
        _credentials[member] = (url, token)
        self._options = Options(
            url=url,
            job_id=member[0],
            worker_id=member[1],
            token=token,
            sync_every_steps=sync_every_steps,
            upload_dtype=upload_dtype,
            reload=reload,
            optimizer_state=optimizer_state,
            keep_as=keep_as,
            adapter=adapter,
            base_model=base_model,
            mu=mu,
            same_start=same_start,
            sequences_per_row=sequences_per_row,
            on_refused=on_refused,
            wait_s=wait_s,
            final_wait_s=final_wait_s,
            max_bytes_per_s=max_bytes_per_s,
            folder=None if folder is None else str(folder),
            attempt=attempt,
        )
        self.progress: dict[str, int] = Progress().plain()
        self._participation: Participation | None = None

    @property
    def version(self) -> int:
        """The version of the global adapter that was copied last; 0 for none."""
        return self._participation.progress.version if self._participation is not None else 0

    @property
    def over(self) -> bool:
        """Whether this worker knows that the federation has completed all rounds; the same on every rank."""
        return self._participation is not None and self._participation.over

    def hurry(self) -> None:
        """End a wait for a version, from any thread, so that a pending command can be handled."""
        if self._participation is not None:
            self._participation.hurry()

    @property
    def sent(self) -> list[Sent]:
        """The updates that the server accepted in this launch; on rank 0."""
        return self._participation.sent if self._participation is not None else []

    def state(self) -> dict[str, Any]:
        """Return the state for the checkpoint that is being written; contains no secrets."""
        if self._participation is not None:
            self.progress = self._participation.checkpoint_state()
        shown = {name: getattr(self._options, name) for name in Options.__slots__ if name not in ("url", "token")}
        return {"args": {"url": _without_token(self._options.url), **shown}, "attributes": {"progress": self.progress}}

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Refuse a model without an adapter before anything is loaded or downloaded."""
        unwrap_peft(kwargs["model"])

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Connect to the server, and start from its newest version."""
        member = (self._options.job_id, self._options.worker_id)
        before = _active.pop(member, None)
        if before is not None:
            before.abandon()
        self._participation = None
        saved = _own_progress((state.stateful_callbacks or {}).get(type(self).__name__), self._options)
        self._participation = Participation(self._options, kwargs["model"], kwargs["optimizer"], args, state, saved)
        _active[member] = self._participation
        if state.stateful_callbacks is not None:
            # A checkpoint from before this callback was added has no entry for it, and Transformers would fail.
            state.stateful_callbacks.setdefault(type(self).__name__, self.state())

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Add the FedProx term to the gradients, if there is one."""
        if self._participation is not None:
            self._participation.before_optimizer()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Count, upload, reload."""
        if self._participation is not None:
            self._participation.step_ended(int(state.global_step))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Record the loss, which is sent with the next update."""
        if self._participation is not None:
            self._participation.logged(int(state.global_step), kwargs.get("logs") or {})

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Capture the last values before the best checkpoint may replace them."""
        if self._participation is not None and (control.should_training_stop or state.global_step >= state.max_steps):
            self._participation.capture(int(state.global_step))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add the federation's files to the checkpoint."""
        if self._participation is not None:
            self._participation.saved(Path(str(args.output_dir), f"checkpoint-{state.global_step}"))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Send the last update."""
        if self._participation is not None:
            _active.pop((self._options.job_id, self._options.worker_id), None)
            self._participation.finish(int(state.global_step))


def _without_token(url: str) -> str:
    """Return a URL without credentials."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _own_progress(saved: Any, options: Options) -> object:
    """Return this worker's progress in this federation from a checkpoint."""
    each = saved if isinstance(saved, list) else [saved]
    for entry in each:
        given = entry.get("args", {}) if isinstance(entry, dict) else {}
        if (given.get("job_id"), given.get("worker_id")) == (options.job_id, options.worker_id):
            return entry.get("attributes", {}).get("progress")
    return None
