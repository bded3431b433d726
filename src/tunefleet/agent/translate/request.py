"""Translates a complete config to a validated spec, with warnings and errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tunefleet.agent.translate import model as model_block
from tunefleet.agent.translate.config_reader import ConfigReader, Defaults
from tunefleet.agent.translate.training import CHOSEN, FORMATS, PAIRS, kind_of, method_of, pair_columns, training
from tunefleet.errors import Fault, SpecError
from tunefleet.spec import dump_task_spec, load_task_spec
from tunefleet.spec.options.trainer import NAMES, OURS
from tunefleet.spec.value_preview import nearest

__all__ = ["Defaults", "Translation", "translate"]

# Names of the built-in trainer.
_OURS: Final = frozenset({OURS, "transformers", "huggingface", "hf", "trl", "pytorch"})
_STRATEGIES: Final = frozenset({"fsdp", "deepspeed"})
# The protocol's split of a single dataset: 80 % for training, sampled with seed 42.
DEFAULT_EVAL_FRACTION: Final = 0.2
_FORMATS: Final[dict[str, dict[str, str]]] = {
    "chatml": {"messages_field": "messages"},
    "messages": {"messages_field": "messages"},
    "openai": {"messages_field": "messages"},
    "chat": {"messages_field": "messages"},
    "sharegpt": {"messages_field": "conversations"},
    "alpaca": {},  # a usual shape of rows, with its `input`
    "prompt_completion": {"prompt_column": "prompt", "response_column": "completion"},
    "prompt_response": {"prompt_column": "prompt", "response_column": "response"},
    "text": {"text_field": "text"},
    "raw_text": {"text_field": "text"},
}
_FILE_FORMATS: Final = frozenset({"jsonl", "json", "csv", "parquet", "auto", "standard"})
_COLUMNS: Final = ("prompt_column", "response_column", "messages_field", "separator")


@dataclass(frozen=True, slots=True)
class Translation:
    """A translated config."""

    kind: str
    spec: dict[str, Any]
    warnings: tuple[str, ...]
    checkpoint: str | None = None


def translate(
    config: Mapping[str, Any],
    source: Mapping[str, Any],
    defaults: Defaults,
    *,
    model: str | None = None,
    splits: tuple[str, ...] = (),
) -> Translation:
    """Translate a config.

    Args:
        source: The `data` keys of the rows, such as `{"path": "rows.jsonl"}`.
        model: Replacement for the model's name, such as a folder of `TUNEFLEET_MODELS_DIR`.
        splits: The splits of the dataset, if known; one that is not for training is the eval set.

    Raises:
        SpecError: If the config is invalid; each error names its key.
    """
    read = ConfigReader(config)
    method = method_of(read)
    with_lora = model_block.wants_lora(read)
    kind = kind_of(method, lora=with_lora)
    read.spec["taskType"] = kind
    model_block.model(read, defaults)
    if model is not None:
        read.put("model.source.identifier", model, "model.name")
    quantized = model_block.quantization(read, with_lora=with_lora)
    if with_lora:
        model_block.lora(read)
    training(read, defaults, method=method, lora=with_lora, quantized=quantized)
    data(read, method)
    _eval_split(read, splits)
    for name, value in source.items():
        read.put(f"data.{name}", value, "dataset_path")
    _extras(read)
    _framework(read)
    _predictions(read, method)
    _distributed(read)
    checkpoint = _checkpoint(read)
    read.warnings.extend(f"config.{path} is not known and has no effect." for path in read.left())
    return Translation(kind, _validated(read), tuple(read.warnings), checkpoint)


def _eval_split(read: ConfigReader, splits: tuple[str, ...]) -> None:
    part = eval_fraction(read)
    evaluates = read.spec["training"].get("eval_strategy") != "no"
    named = next((name for name in ("validation", "test", "valid", "val", "eval", "dev") if name in splits), None)
    if named is not None:
        read.put("data.eval.split", named, "dataset_path")
    elif part > 0:
        read.put("data.eval.fraction", part, "data.eval_split")
    elif evaluates:
        read.fault("data.eval_split", "is 0, but evaluations need an eval set", "use for example 0.1")


def _extras(read: ConfigReader) -> None:
    read.take("dataset_path", "execution_id", "output_dir", "user_id", "name", "job_id")
    provider = read.take("provider")
    if provider not in (None, "local", "huggingface", "agent"):
        read.warnings.append(f"config.provider {provider!r} has no effect: the training runs on this machine.")
    read.ignore("tools")
    if read.look("tensorboard") is not None:
        enabled = read.take("tensorboard.enabled")
        read.ignore("tensorboard.log_dir", why="has no effect: the event files are in the job folder")
        if enabled is not False:
            read.put("training.report_to", ["tensorboard"], "tensorboard.enabled")


def _framework(read: ConfigReader) -> None:
    """Set the trainer of the config; an unknown one is an error, since another trainer would give other results."""
    named, path = read.taken("framework", "training.framework", "trainer")
    known = str(named).lower()
    if named is None or known in _OURS:
        return
    if known not in NAMES:
        near = nearest(known, [*NAMES, *_OURS])
        hint = f"use one of {', '.join(NAMES)}, or remove it"
        read.fault(path, f"{named!r:.40} is not a trainer", f"did you mean {near}? {hint}" if near else hint)
        return
    read.put("trainer", known, path)


def _predictions(read: ConfigReader, method: str) -> None:
    enabled = read.take("predictions.enabled")
    options = {
        name: read.taken(f"predictions.{name}") for name in ("sample_count", "sample_frequency", "max_new_tokens")
    }
    if not enabled:
        return
    if method in PAIRS:
        read.warnings.append(f"config.predictions has no effect with the method {method}.")
        return
    if read.spec["training"].get("eval_strategy") == "no":
        read.warnings.append("config.predictions has no effect: predictions need evaluations, and there are none.")
        return
    read.put("predictions.enabled", True, "predictions.enabled")
    for name, (value, path) in options.items():
        if value is not None:
            read.put(f"predictions.{name}", value, path)


def _distributed(read: ConfigReader) -> None:
    block = read.look("training.distributed")
    if not isinstance(block, Mapping):
        if read.take("training.distributed") not in (None, False, "none"):
            read.warnings.append("config.training.distributed has no effect without a number of GPUs.")
        return
    enabled = read.take("training.distributed.enabled")
    count = read.take("training.distributed.num_gpus", "training.distributed.world_size", "num_gpus")
    strategy = read.take("training.distributed.strategy", "distributed_strategy")
    if enabled is False or strategy == "none" or not isinstance(count, int) or count < 2:
        return
    read.put("resources.processes", count, "training.distributed.num_gpus")
    read.put("resources.hardware.gpu.count", count, "training.distributed.num_gpus")
    known = str(strategy or "ddp").lower()
    if known in _STRATEGIES:
        read.put("training.parallelism", known, "training.distributed.strategy")
    elif known != "ddp":
        read.warnings.append(f"config.training.distributed.strategy {strategy!r} has no effect: DDP is used.")


def _checkpoint(read: ConfigReader) -> str | None:
    block = read.look("training.checkpoint_resume")
    if isinstance(block, Mapping):
        enabled = read.take("training.checkpoint_resume.enabled")
        path = read.take("training.checkpoint_resume.checkpoint_path", "training.checkpoint_resume.path")
        return str(path) if path and enabled is not False else None
    value = read.take("training.checkpoint_resume", "training.resume_from_checkpoint")
    if isinstance(value, bool) or value is None:
        return None  # a new job has no checkpoint of its own yet
    return str(value)


def _validated(read: ConfigReader) -> dict[str, Any]:
    faults: list[Fault] = list(read.faults)
    spec: dict[str, Any] = {}
    try:
        spec = dump_task_spec(load_task_spec(read.spec))
    except SpecError as error:
        known = {fault.path for fault in faults}
        faults += [fault for found in error.faults if (fault := read.renamed(found)).path not in known]
    if faults:
        raise SpecError(faults, filename="the config")
    return spec


def data(read: ConfigReader, method: str) -> None:
    """Translate the data block."""
    read.move("data.max_samples", "data.max_samples")
    form = read.take("data.dataset_format", "data.format")
    if method in PAIRS:
        pair_columns(read, method, form, _FILE_FORMATS)
    else:
        _supervised(read, form, plain_text=method == "cpt")
    read.ignore("data.strategy", "data.generation_type", why="has no effect: the columns decide how a row is read")


def _supervised(read: ConfigReader, form: Any, *, plain_text: bool) -> None:
    has_columns = _columns(read)
    read.ignore(*CHOSEN, why="belongs to another training method and has no effect")
    name_of_form = str(form).lower()
    columns = _FORMATS.get(name_of_form) if form is not None else None
    if form is not None and name_of_form in FORMATS:
        read.warnings.append(f"config.data.dataset_format {form!r} belongs to dpo and orpo; the columns decide.")
    elif form is not None and columns is None and name_of_form not in _FILE_FORMATS:
        read.warnings.append(f"config.data.dataset_format {form!r} is not known; the columns decide.")
    if plain_text and not read.spec.get("data", {}).get("text_field"):
        read.put("data.text_field", "text", "training.method")
    elif columns and not has_columns and not plain_text:
        for name, value in columns.items():
            read.put(f"data.{name}", value, "data.dataset_format")


def _columns(read: ConfigReader) -> bool:
    text = read.move("data.text_field", "data.text_field", "data.text_column")
    others = [read.move(f"data.{name}", f"data.{name}") for name in _COLUMNS]
    return text is not None or any(value is not None for value in others[:3])


def eval_fraction(read: ConfigReader) -> float:
    """Return the fraction of a single dataset for the eval set; 0 for none."""
    held, path = read.taken("data.eval_split", "eval_split", "data.validation_split")
    train = read.take("data.train_split")
    trained = _part(train)
    if held is None and trained is not None:
        held, path = round(1 - trained, 6), "data.train_split"
    if held is None:
        return DEFAULT_EVAL_FRACTION
    part = _part(held)
    if part is None and isinstance(held, str):
        read.warnings.append(f"config.{path} {held!r} is a name: an eval split is found automatically.")
        return DEFAULT_EVAL_FRACTION
    if part is None or not 0 <= part < 1:
        read.fault(path, f"is {held!r:.40}, not a fraction", "use for example 0.1")
        return DEFAULT_EVAL_FRACTION
    if trained is not None and part + trained > 1 + 1e-9:
        read.fault(path, "and data.train_split add up to more than 1", "remove one of them")
    return part


def _part(value: Any) -> float | None:
    """Parse a fraction, also given in percent; None if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number / 100 if number > 1 else number
