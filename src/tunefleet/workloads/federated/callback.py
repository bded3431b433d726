"""`FederatedCallback`: any Hugging Face or TRL trainer with a LoRA adapter becomes a worker of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from tunefleet.schemas.federated import UploadDtype
from tunefleet.workloads.federated.live_adapter import unwrapped
from tunefleet.workloads.federated.options import OnRefused, Options
from tunefleet.workloads.federated.participation import Participation
from tunefleet.workloads.federated.state import Progress
from tunefleet.workloads.federated.uploader import Sent

# Address and token by federation and worker: a Trainer that makes its callbacks anew has them from a checkpoint,
# where no secret lies.
_given: Final[dict[tuple[str, str], tuple[str, str | None]]] = {}
# Who takes part in this process: a training that was broken off leaves threads, and its successor ends them.
_taking_part: Final[dict[tuple[str, str], Participation]] = {}


class FederatedCallback(TrainerCallback, ExportableState):
    """Uploads the adapter every so many steps, and copies each new global version into it while it trains.

        trainer = SFTTrainer(..., callbacks=[FederatedCallback("http://server:8000", "fed-…", "lab-3", token)])

    Training waits for nothing: a thread packs and sends, another one fetches. What arrives is copied in place between
    two steps, so the optimizer keeps its parameters. A server that is away is asked again and again, and the training
    goes on. With several ranks, rank 0 talks, and all copy the same values at the same step. What was uploaded and how
    many rows count is kept in the trainer's checkpoints: a training that resumes uploads nothing twice.

    Args:
        url: The server; `http://:TOKEN@host:8000` brings the token along.
        job_id: The federation: its id or its number.
        worker_id: What this worker calls itself.
        token: The federation's token; by default the one in the URL, then the key that is saved for the server.
        sync_every_steps: Optimizer steps between two uploads.
        upload_dtype: `fp32`, `bf16` (half of it), or `int8` (a quarter; the rounding is made up for the next time).
        reload: `replace` takes a version as it is; `mix(0.5)` the mean of it and of what was trained meanwhile.
        optimizer_state: Of the adapter, at a reload: `keep`, `reset`, or `scale(0.5)` for the first moments.
        keep_as: Also keep each version as a frozen adapter of this name.
        adapter: Which adapter of the model; by default the active one.
        base_model: What the uploads call the model below; by default what the adapter's config calls it.
        mu: FedProx: strength of the pull towards the global adapter; by default what the federation wants.
        same_start: Let an adapter that was just made begin with the factors that all workers of the federation draw.
        sequences_per_row: How many sequences a row of the data becomes; by default 2 in TRL's trainings on pairs.
        on_refused: When the server refuses (bad token, unfit adapter, federation cancelled): `raise` ends the training
            with the reason; `warn` says it once, and the training goes on alone.
        wait_s: How long each upload waits for the next version; 0 trains on meanwhile.
        final_wait_s: How long the end of the training may wait for the last upload.
        max_bytes_per_s: Holds uploads and downloads to a speed.
        folder: For what is on its way; by default `federated` in the trainer's `output_dir`.
        attempt: How often this worker's training was begun, this time included: where something begins trainings
            again, the server refuses what an earlier one sends once a later one takes part.

    Raises:
        InputError: If an argument cannot be meant.
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
        whose = (str(job_id), str(worker_id))
        if token is None and whose in _given and _bare(_given[whose][0]) == url:
            url, token = _given[whose]
        _given[whose] = (url, token)
        self._options = Options(
            url=url,
            job_id=whose[0],
            worker_id=whose[1],
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
        self._part: Participation | None = None

    @property
    def version(self) -> int:
        """The version of the global adapter that was copied in last; 0 for none."""
        return self._part.progress.version if self._part is not None else 0

    @property
    def over(self) -> bool:
        """Whether the federation has had all its rounds, as far as this worker has heard; the same on every rank."""
        return self._part is not None and self._part.over

    def hurry(self) -> None:
        """End a wait for a version, from whatever thread: the training is wanted for something else."""
        if self._part is not None:
            self._part.hurry()

    @property
    def sent(self) -> list[Sent]:
        """The updates that the server has taken in this launch; on rank 0."""
        return self._part.sent if self._part is not None else []

    def state(self) -> dict[str, Any]:
        """Return what goes into the checkpoint that is being written: no secret."""
        if self._part is not None:
            self.progress = self._part.kept()
        shown = {name: getattr(self._options, name) for name in Options.__slots__ if name not in ("url", "token")}
        return {"args": {"url": _bare(self._options.url), **shown}, "attributes": {"progress": self.progress}}

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Refuse a model without an adapter before anything is loaded or downloaded for it."""
        unwrapped(kwargs["model"])

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Meet the server, and start from its newest version."""
        whose = (self._options.job_id, self._options.worker_id)
        before = _taking_part.pop(whose, None)
        if before is not None:
            before.abandon()
        self._part = None
        saved = _mine((state.stateful_callbacks or {}).get(type(self).__name__), self._options)
        self._part = Participation(self._options, kwargs["model"], kwargs["optimizer"], args, state, saved)
        _taking_part[whose] = self._part
        if state.stateful_callbacks is not None:
            # A checkpoint from before this callback knows nothing of it, and Transformers would stumble over that.
            state.stateful_callbacks.setdefault(type(self).__name__, self.state())

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Pull the gradients towards the global adapter, if there is a pull."""
        if self._part is not None:
            self._part.before_optimizer()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Count, upload, reload."""
        if self._part is not None:
            self._part.step_ended(int(state.global_step))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Note the loss, which goes with the next update."""
        if self._part is not None:
            self._part.logged(int(state.global_step), kwargs.get("logs") or {})

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the last values before the best checkpoint's may be put in their place."""
        if self._part is not None and (control.should_training_stop or state.global_step >= state.max_steps):
            self._part.capture(int(state.global_step))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Leave in the checkpoint what belongs to it."""
        if self._part is not None:
            self._part.saved(Path(str(args.output_dir), f"checkpoint-{state.global_step}"))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Send the last update."""
        if self._part is not None:
            _taking_part.pop((self._options.job_id, self._options.worker_id), None)
            self._part.finish(int(state.global_step))


def _bare(url: str) -> str:
    """Return an address without a token."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _mine(saved: Any, options: Options) -> object:
    """Return the progress in a checkpoint, of this worker in this federation."""
    each = saved if isinstance(saved, list) else [saved]
    for entry in each:
        given = entry.get("args", {}) if isinstance(entry, dict) else {}
        if (given.get("job_id"), given.get("worker_id")) == (options.job_id, options.worker_id):
            return entry.get("attributes", {}).get("progress")
    return None
