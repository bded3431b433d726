"""Sample answers at the evaluations during the training, as records of the journal."""

from __future__ import annotations

from collections.abc import Callable

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tunefleet.spec import PredictionsSpec
from tunefleet.trainer_control.journal.null import Journal
from tunefleet.workloads.training.samples import Answer


class Predict(TrainerCallback):
    """Lets the model answer held-out prompts; the random state is left as it was."""

    ask: Callable[[], list[Answer]] | None = None
    """Makes the answers; set once the trainer exists."""

    def __init__(self, wanted: PredictionsSpec, journal: Journal) -> None:
        self._every = wanted.sample_frequency
        self._journal = journal

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Answer at this evaluation, if it is one of those; they are counted over all launches."""
        number = sum("eval_loss" in entry for entry in state.log_history)
        if self._every == "eval" or (isinstance(self._every, int) and number % self._every == 0):
            self._write(state.global_step)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Answer at the end of an epoch."""
        if self._every == "epoch":
            self._write(state.global_step)

    def _write(self, step: int) -> None:
        for index, answer in enumerate(self.ask() if self.ask else ()):
            self._journal.prediction(step, index, answer.prompt, answer.output, answer.reference)
