"""What a user writes of a campaign: one entry of the scheduler's `config.yaml`.

The document's names and defaults are exactly those of the Gradients scheduler; the others are ours, and every one of
them has a default, so that the document's file means here what it means there.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from tunefleet.spec.base import (
    Block,
    ModelName,
    NaturalFloat,
    NaturalInt,
    NotBool,
    PositiveFloat,
    PositiveInt,
    Revision,
    Share,
    Text,
    as_list,
    many_wrong,
    one_of_words,
    wrong,
)
from tunefleet.spec.documents.campaign_data import CampaignDatasetSpec, CampaignDedupeSpec
from tunefleet.spec.options.adapter import LoraSpec, QuantizationSpec
from tunefleet.spec.options.model import TransformersSpec
from tunefleet.spec.options.notify import NotifySpec
from tunefleet.spec.options.resources import ResourcesSpec
from tunefleet.spec.options.training_options import LoraTrainingSpec
from tunefleet.spec.tasks.cross_field_checks import Faults

TaskType = Literal["InstructText", "InstructTextWithFixedDatasets", "Chat"]
LOCAL: Final = "local"
GRADIENTS: Final = "gradients"
NONE: Final = "none"


class RunIntervalsSpec(Block):
    """`run_intervals`: from the end of one run to the start of the next; one draw of days and one of hours, added."""

    min_days: NaturalFloat = 0
    """Fewest days."""
    max_days: NaturalFloat = 0
    """Most days."""
    min_hours: NaturalFloat = 0
    """Fewest hours, beside the days."""
    max_hours: NaturalFloat = 0
    """Most hours, beside the days."""

    @model_validator(mode="after")
    def _ordered(self) -> RunIntervalsSpec:
        faults: Faults = [
            (f"min_{unit}", f"is {low:g}, and max_{unit} is {high:g}", f"raise max_{unit} to {low:g} or more")
            for unit in ("days", "hours")
            if (low := getattr(self, f"min_{unit}")) > (high := getattr(self, f"max_{unit}"))
        ]
        if faults:
            raise many_wrong(faults)
        return self


class CampaignModelSpec(Block):
    """`model`: how the base model is loaded; `model_repo` says which one."""

    revision: Revision | None = None
    """Branch, tag or commit of a hub id."""
    trust_remote_code: bool = False
    """Run the Python code that comes with the model; needs a worker that was started with `--allow-code`."""
    verify: Literal["forward", "files"] = "forward"
    """What a task looks at before the first order. `files`: whether they are whole, vocabulary and special tokens;
    `forward`: a forward pass, too, for which the model must fit into the memory of a worker."""
    transformers: TransformersSpec = Field(default_factory=TransformersSpec)
    """How it is loaded."""


class CampaignEvaluateSpec(Block):
    """`evaluate`: how base, promoted model and candidates are measured on the held-out rows."""

    max_rows: PositiveInt | None = None
    """The first so many held-out rows; by default all."""
    max_seq_length: PositiveInt = 1024
    """Longer rows are cut to this many tokens."""
    batch_size: PositiveInt = 8
    """Rows of one forward pass."""
    max_tokens: PositiveInt = 256
    """With `gate.metric: accuracy`: longest answer, in tokens."""
    resamples: Annotated[int, Field(ge=100, le=100_000), NotBool] = 1000
    """Draws of the bootstrap."""


class CampaignGateSpec(Block):
    """`gate`: when a candidate is promoted; it must be better than the base and than the promoted model."""

    metric: Literal["loss", "accuracy"] = "loss"
    """`loss` on the held-out rows, or `accuracy`: the part of them that is answered right."""
    min_gain: NaturalFloat = 0.0
    """By how much it must be better at least, in units of the metric."""
    confidence: Annotated[float, Field(gt=0.5, lt=1), NotBool] = 0.95
    """Of the interval of the difference, paired row by row, which must not contain 0."""


class CampaignPublishSpec(Block):
    """`publish`: where a promoted model goes."""

    to: Text = "none"
    """`hf://ORG/NAME`, `s3://BUCKET/PREFIX`, a folder, or `none`; `{cycle}` in it stands for the cycle's number. Where
    it is not said and Gradients trains, `hf://<HF_USERNAME>/<campaign>-{cycle}`."""
    private: bool = True
    """Whether a repository of the hub that is made is private."""


class CampaignBudgetSpec(Block):
    """`budget`: what a campaign may spend; looked at before every paid call."""

    max_cost: PositiveFloat | None = None
    """Most that it may cost in all, in the units of the costs below."""
    max_tasks_per_day: PositiveInt | None = None
    """Most tasks at the provider within 24 hours."""
    max_failures: PositiveInt = 5
    """Failures in a row after which the campaign is held until somebody says `retry`."""
    cost_per_task: NaturalFloat = 0.0
    """What one task at the provider costs."""
    cost_per_second: NaturalFloat = 0.0
    """What a second of such a task costs, beside that."""
    cost_per_merge_second: NaturalFloat = 0.0
    """What a second of a merge on RunPod costs."""

    @model_validator(mode="after")
    def _measurable(self) -> CampaignBudgetSpec:
        costs = (self.cost_per_task, self.cost_per_second, self.cost_per_merge_second)
        if self.max_cost is not None and not any(costs):
            raise wrong("has no effect: nothing costs anything", "give cost_per_task or cost_per_second", at="max_cost")
        return self


class CampaignMergeSpec(Block):
    """`merge`: how an adapter and its base become one model, in bf16."""

    on: Literal["fleet", "runpod"] | None = None
    """`fleet`: a task on one of our workers; `runpod`: a job of RunPod serverless; by default `fleet`, unless
    `USE_RUNPOD_FOR_MERGE` is set."""
    verify: bool = True
    """Prove the result by a forward pass against base and adapter; the model must fit into the worker's memory for it.
    """


def _trackers(value: Any) -> Any:
    names = as_list(value)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return names
    words = tuple(name.lower() for name in names)
    if NONE in words and len(words) > 1:
        raise wrong("has none beside a tracker", "write none, or the trackers")
    return tuple(name for name in words if name != NONE)


class CampaignSpec(Block):
    """A campaign: training that goes on by itself, a chunk of the data each cycle."""

    enabled: bool = False
    """Whether it runs."""
    wandb_project: Text | None = None
    """The project of its runs in Weights & Biases; other trackers take it, too. By default the campaign's name."""
    run_intervals: RunIntervalsSpec | None = None
    """Time between the end of a run and the start of the next; by default `MIN_` and `MAX_*_BETWEEN_RUNS`."""
    datasets: Annotated[tuple[CampaignDatasetSpec, ...], Field(min_length=1, max_length=100)]
    """Where the rows come from."""
    model_repo: ModelName
    """Hub id, local folder, or `builtin:gsm8k-llama-2m`: the base of the first cycle; later ones begin with the
    promoted model."""
    tokenizer_id: ModelName | None = None
    """Give the model the tokenizer of this one: hub id or local folder. Its embeddings stay as they are."""
    hours_to_complete: Annotated[float, Field(gt=0, le=24 * 365), NotBool] = 8
    """Time for one task, in hours."""
    samples_per_training: PositiveInt = 150_000
    """Most rows of one task; the rows are cut into as many chunks of equal size as that needs."""
    final_test_size: Share = 0.05
    """Part of the rows that is held out: never trained on, and never sent to anybody."""
    random_seed: NaturalInt = 42
    """Seed of the shuffle, and of all other draws."""
    task_type: TaskType = "InstructText"
    """`InstructText`: instructions; `InstructTextWithFixedDatasets`: with files of their own for the provider's test
    and synthetic rows; `Chat`: conversations."""
    chat_template: Text = "chatml"
    """With `task_type: Chat`: how a provider writes a chat."""
    provider: Annotated[Text, BeforeValidator(one_of_words({}))] | None = None
    """Who trains: `local` (this server's workers), `gradients`, or the name of an installed one; by default `gradients`
    if `GRADIENTS_API_KEY` is set, else `local`."""
    model: CampaignModelSpec = Field(default_factory=CampaignModelSpec)
    """How the base model is loaded."""
    lora: LoraSpec = Field(default_factory=LoraSpec)
    """With `provider: local`: the adapter."""
    quantization: QuantizationSpec | None = None
    """With `provider: local`: the frozen model in fewer bits."""
    training: LoraTrainingSpec = Field(default_factory=LoraTrainingSpec)
    """With `provider: local`: how it is trained."""
    resources: ResourcesSpec = Field(default_factory=ResourcesSpec)
    """What a worker must have that trains, evaluates or merges."""
    dedupe: CampaignDedupeSpec = Field(default_factory=CampaignDedupeSpec)
    """Of rows that are the same one stays."""
    evaluate: CampaignEvaluateSpec = Field(default_factory=CampaignEvaluateSpec)
    """How models are measured on the held-out rows."""
    gate: CampaignGateSpec = Field(default_factory=CampaignGateSpec)
    """When a candidate is promoted."""
    merge: CampaignMergeSpec = Field(default_factory=CampaignMergeSpec)
    """How the candidate becomes one model."""
    publish: CampaignPublishSpec = Field(default_factory=CampaignPublishSpec)
    """Where a promoted model goes."""
    budget: CampaignBudgetSpec = Field(default_factory=CampaignBudgetSpec)
    """What the campaign may spend."""
    tracking: Annotated[tuple[Text, ...], Field(max_length=10), BeforeValidator(_trackers)] | None = None
    """Trackers that are told of each cycle: `wandb`, `mlflow`, `trackio`, the name of an installed one, several of
    them, or `none`; by default `wandb` where `wandb_project` is given and `WANDB_API_KEY` or `WANDB_MODE=offline` is
    set."""
    notify: Annotated[tuple[NotifySpec, ...], Field(max_length=20)] = ()
    """Who is told when a model is promoted, a cycle fails or the budget is spent."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """What travelled with the file: `model_repo`, `tokenizer_id`, `datasets.N.path` → digest. The client writes it."""

    @model_validator(mode="after")
    def _consistent(self) -> CampaignSpec:
        faults = [*self._data_faults(), *self._provider_faults()]
        if faults:
            raise many_wrong(faults)
        return self

    def _data_faults(self) -> Faults:
        faults: Faults = [
            (f"datasets.{index}.{key}" if key else f"datasets.{index}", message, hint)
            for index, dataset in enumerate(self.datasets)
            for key, message, hint in dataset.misfits(chat=self.chats)
        ]
        weighted = [each.weight is not None for each in self.datasets]
        if any(weighted) and len(weighted) == 1:
            faults.append(("datasets.0.weight", "has no effect: there is no other source", "leave it out"))
        elif any(weighted) and not all(weighted):
            missing = weighted.index(False)
            faults.append((f"datasets.{missing}", "has no weight, and others have", "give each a weight, or none"))
        if self.final_test_size == 0:
            hint = "hold out some rows, such as 0.05"
            faults.append(("final_test_size", "leaves nothing to tell a better model by", hint))
        if not self.chats and "chat_template" in self.model_fields_set:
            faults.append(("chat_template", "has no effect without task_type: Chat", "leave it out"))
        return faults

    def _provider_faults(self) -> Faults:
        faults: Faults = []
        if self.provider not in {None, LOCAL}:
            faults += [
                (key, f"has no effect with provider: {self.provider}", "leave it out, or write provider: local")
                for key in ("lora", "quantization", "training")
                if key in self.model_fields_set and getattr(self, key) is not None
            ]
        if self.training.resume_from_path is not None:
            hint = "leave it out; the first cycle begins with model_repo"
            faults.append(("training.resume_from_path", "contradicts the promoted model", hint))
        if self.gate.metric == "accuracy" and self.chats:
            faults.append(("gate.metric", "accuracy needs rows with one answer each", "write loss"))
        return faults

    @property
    def chats(self) -> bool:
        """Whether it trains on conversations."""
        return self.task_type == "Chat"
