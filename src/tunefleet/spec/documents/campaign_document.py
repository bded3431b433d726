"""The spec of a campaign: one entry of the scheduler's `config.yaml`.

Keys and defaults of the Gradients scheduler are unchanged. All additional keys have defaults, so that a file of that
scheduler has the same meaning here.
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
from tunefleet.spec.options.model import LoraSpec, QuantizationSpec, TransformersSpec
from tunefleet.spec.options.notify import NotifySpec
from tunefleet.spec.options.resources import ResourcesSpec
from tunefleet.spec.options.training_options import LoraTrainingSpec
from tunefleet.spec.tasks.cross_field_checks import Faults

TaskType = Literal["InstructText", "InstructTextWithFixedDatasets", "Chat"]
LOCAL: Final = "local"
GRADIENTS: Final = "gradients"
NONE: Final = "none"


class RunIntervalsSpec(Block):
    """`run_intervals`: time between the end of a run and the start of the next: random days plus random hours."""

    min_days: NaturalFloat = 0
    """Minimum days."""
    max_days: NaturalFloat = 0
    """Maximum days."""
    min_hours: NaturalFloat = 0
    """Minimum hours, added to the days."""
    max_hours: NaturalFloat = 0
    """Maximum hours, added to the days."""

    @model_validator(mode="after")
    def _ordered(self) -> RunIntervalsSpec:
        faults: Faults = [
            (f"min_{unit}", f"is {low:g}, but max_{unit} is {high:g}", f"raise max_{unit} to at least {low:g}")
            for unit in ("days", "hours")
            if (low := getattr(self, f"min_{unit}")) > (high := getattr(self, f"max_{unit}"))
        ]
        if faults:
            raise many_wrong(faults)
        return self


class CampaignModelSpec(Block):
    """`model`: how the base model in `model_repo` is loaded."""

    revision: Revision | None = None
    """Branch, tag or commit on the Hub."""
    trust_remote_code: bool = False
    """Run the Python code that comes with the model; requires a worker started with `--allow-code`."""
    verify: Literal["forward", "files"] = "forward"
    """Checks of the model before the first training run. `files`: completeness, vocabulary and special tokens;
    `forward`: additionally a forward pass, which requires the model to fit into a worker's memory."""
    transformers: TransformersSpec = Field(default_factory=TransformersSpec)
    """How the model is loaded."""


class CampaignEvaluateSpec(Block):
    """`evaluate`: how the base model, the promoted model and the candidates are evaluated on the eval set."""

    max_rows: PositiveInt | None = None
    """Number of eval rows to use. Default: all."""
    max_seq_length: PositiveInt = 1024
    """Max sequence length in tokens; longer rows are truncated."""
    batch_size: PositiveInt = 8
    """Rows per forward pass."""
    max_tokens: PositiveInt = 256
    """With `gate.metric: accuracy`: maximum tokens per answer."""
    resamples: Annotated[int, Field(ge=100, le=100_000), NotBool] = 1000
    """Number of bootstrap resamples."""


class CampaignGateSpec(Block):
    """`gate`: when a candidate is promoted. It must be better than both the base model and the promoted model."""

    metric: Literal["loss", "accuracy"] = "loss"
    """`loss`: eval loss; `accuracy`: share of eval rows with a correct answer."""
    min_gain: NaturalFloat = 0.0
    """Minimum improvement, in the unit of the metric."""
    confidence: Annotated[float, Field(gt=0.5, lt=1), NotBool] = 0.95
    """Confidence level of the interval for the paired row-by-row difference. The interval must not contain 0."""


class CampaignPublishSpec(Block):
    """`publish`: where a promoted model is published."""

    to: Text = "none"
    """`hf://ORG/NAME`, `s3://BUCKET/PREFIX`, a folder, or `none`; `{cycle}` is replaced by the cycle number. If
    unset and the provider is Gradients: `hf://<TUNEFLEET_HF_USERNAME>/<campaign>-{cycle}`."""
    private: bool = True
    """Create Hub repositories as private repositories."""


class CampaignBudgetSpec(Block):
    """`budget`: spending limits of a campaign, checked before every paid request."""

    max_cost: PositiveFloat | None = None
    """Maximum total cost, in the same unit as the costs below."""
    max_tasks_per_day: PositiveInt | None = None
    """Maximum tasks submitted to the provider within 24 hours."""
    max_failures: PositiveInt = 5
    """Consecutive failures after which the campaign is held until you retry it."""
    cost_per_task: NaturalFloat = 0.0
    """Cost per task at the provider."""
    cost_per_second: NaturalFloat = 0.0
    """Additional cost per second of such a task."""
    cost_per_merge_second: NaturalFloat = 0.0
    """Cost per second of a merge on RunPod."""

    @model_validator(mode="after")
    def _measurable(self) -> CampaignBudgetSpec:
        costs = (self.cost_per_task, self.cost_per_second, self.cost_per_merge_second)
        if self.max_cost is not None and not any(costs):
            raise wrong("has no effect without costs", "set cost_per_task or cost_per_second", at="max_cost")
        return self


class CampaignMergeSpec(Block):
    """`merge`: how an adapter is merged into its base model, in bf16."""

    on: Literal["fleet", "runpod"] | None = None
    """`fleet`: a task on a worker of this server; `runpod`: a job on RunPod serverless. Default: `fleet`, unless
    `TUNEFLEET_RUNPOD` is set."""
    verify: bool = True
    """Verify the merged model against base model and adapter with a forward pass. It must fit into the worker's memory.
    """


def _trackers(value: Any) -> Any:
    names = as_list(value)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return names
    words = tuple(name.lower() for name in names)
    if NONE in words and len(words) > 1:
        raise wrong("cannot combine none with trackers", "use none, or the trackers")
    return tuple(name for name in words if name != NONE)


class CampaignSpec(Block):
    """A campaign trains continuously, on one chunk of the data per cycle."""

    enabled: bool = False
    """Run the campaign."""
    wandb_project: Text | None = None
    """Project name in Weights & Biases and other trackers. Default: the campaign's name."""
    run_intervals: RunIntervalsSpec | None = None
    """Time between the end of a run and the start of the next. Default: `TUNEFLEET_CAMPAIGN_MIN_*` and
    `TUNEFLEET_CAMPAIGN_MAX_*`."""
    datasets: Annotated[tuple[CampaignDatasetSpec, ...], Field(min_length=1, max_length=100)]
    """Where the rows come from."""
    model_repo: ModelName
    """Base model of the first cycle: Hub id, local folder or `builtin:gsm8k-llama-2m`. Later cycles start from the
    promoted model."""
    tokenizer_id: ModelName | None = None
    """Model to take the tokenizer from, in place of the base model's: Hub id or local folder. The embeddings do not
    change."""
    hours_to_complete: Annotated[float, Field(gt=0, le=24 * 365), NotBool] = 8
    """Time limit of one task, in hours."""
    samples_per_training: PositiveInt = 150_000
    """Maximum rows per task. The rows are split into equal chunks of at most this size."""
    final_test_size: Share = 0.05
    """Fraction of rows held out as the eval set. They are never trained on and never sent to a provider."""
    random_seed: NaturalInt = 42
    """Random seed for shuffling and all sampling."""
    task_type: TaskType = "InstructText"
    """`InstructText`: instructions; `InstructTextWithFixedDatasets`: instructions, with separate files for the
    provider's test and synthetic rows; `Chat`: conversations."""
    chat_template: Text = "chatml"
    """With `task_type: Chat`: chat template that the provider uses."""
    provider: Annotated[Text, BeforeValidator(one_of_words({}))] | None = None
    """Training provider: `local` (this server's workers), `gradients`, or the name of an installed plugin. Default:
    `gradients` if `GRADIENTS_API_KEY` is set, otherwise `local`."""
    model: CampaignModelSpec = Field(default_factory=CampaignModelSpec)
    """How the base model is loaded."""
    lora: LoraSpec = Field(default_factory=LoraSpec)
    """With `provider: local`: the LoRA adapter."""
    quantization: QuantizationSpec | None = None
    """With `provider: local`: quantization of the frozen model."""
    training: LoraTrainingSpec = Field(default_factory=LoraTrainingSpec)
    """With `provider: local`: hyperparameters."""
    resources: ResourcesSpec = Field(default_factory=ResourcesSpec)
    """Requirements for the workers that train, evaluate or merge."""
    dedupe: CampaignDedupeSpec = Field(default_factory=CampaignDedupeSpec)
    """How duplicate rows are removed."""
    evaluate: CampaignEvaluateSpec = Field(default_factory=CampaignEvaluateSpec)
    """How models are evaluated on the eval set."""
    gate: CampaignGateSpec = Field(default_factory=CampaignGateSpec)
    """When a candidate is promoted."""
    merge: CampaignMergeSpec = Field(default_factory=CampaignMergeSpec)
    """How the candidate is merged."""
    publish: CampaignPublishSpec = Field(default_factory=CampaignPublishSpec)
    """Where a promoted model is published."""
    budget: CampaignBudgetSpec = Field(default_factory=CampaignBudgetSpec)
    """Spending limits."""
    tracking: Annotated[tuple[Text, ...], Field(max_length=10), BeforeValidator(_trackers)] | None = None
    """Experiment trackers for the cycles: `wandb`, `mlflow`, `trackio`, the name of an installed plugin, a list of
    these, or `none`. Default: `wandb` if `wandb_project` is set, and so is `WANDB_API_KEY` or `WANDB_MODE=offline`."""
    notify: Annotated[tuple[NotifySpec, ...], Field(max_length=20)] = ()
    """Notifications sent when a model is promoted, a cycle fails or the budget is exhausted."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Digests of uploaded files, by key (`model_repo`, `tokenizer_id`, `datasets.N.path`). Set by the client."""

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
        # Weights are relative, so a mix of set and unset ones is ambiguous.
        weighted = [each.weight is not None for each in self.datasets]
        if any(weighted) and len(weighted) == 1:
            faults.append(("datasets.0.weight", "has no effect with a single source", "remove it"))
        elif any(weighted) and not all(weighted):
            missing = weighted.index(False)
            faults.append(
                (
                    f"datasets.{missing}",
                    "has no weight, but other datasets have one",
                    "give all datasets a weight, or none",
                )
            )
        # Without an eval set the gate could not compare candidates.
        if self.final_test_size == 0:
            hint = "use a fraction such as 0.05"
            faults.append(("final_test_size", "leaves no rows for the eval set", hint))
        if not self.chats and "chat_template" in self.model_fields_set:
            faults.append(("chat_template", "has no effect without task_type: Chat", "remove it"))
        return faults

    def _provider_faults(self) -> Faults:
        faults: Faults = []
        if self.provider not in {None, LOCAL}:
            faults += [
                (key, f"has no effect with provider: {self.provider}", "remove it, or set provider: local")
                for key in ("lora", "quantization", "training")
                if key in self.model_fields_set and getattr(self, key) is not None
            ]
        # Every cycle starts from the promoted model, which the server sets.
        if self.training.resume_from_path is not None:
            hint = "remove it; the first cycle starts from model_repo"
            faults.append(("training.resume_from_path", "contradicts the promoted model", hint))
        if self.gate.metric == "accuracy" and self.chats:
            faults.append(("gate.metric", "accuracy needs rows with one answer each", "use loss"))
        return faults

    @property
    def chats(self) -> bool:
        """Whether the campaign trains on conversations."""
        return self.task_type == "Chat"
