"""Tasks of EleutherAI's lm-eval: lookup of tasks, results stored per task, confidence intervals."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tunefleet.analysis.evaluation.statistics import Metric
from tunefleet.artifacts.archive import unpacked_path
from tunefleet.errors import InputError, UnreachableError
from tunefleet.fsutil import write_file
from tunefleet.spec.tasks.evaluate_task import EvaluationSpec
from tunefleet.workloads.evaluation import custom_tasks, scores, summary
from tunefleet.workloads.evaluation.launch import without_bars
from tunefleet.workloads.evaluation.summary import Measured, Pair

if TYPE_CHECKING:
    from tunefleet.workloads.evaluation.launch import Run

_OFFLINE: Final = ("Offline", "ConnectionError", "ConnectTimeout", "LocalEntryNotFound", "MaxRetryError")
_KEPT_KEYS: Final = (
    "results", "groups", "group_subtasks", "versions", "n-shot", "higher_is_better", "n-samples", "samples",
    "task_hashes",
)  # fmt: skip


def measure(run: Run, index: int, evaluation: EvaluationSpec) -> Measured:
    """Measure the remaining tasks of one evaluation."""
    import lm_eval
    import lm_eval.utils

    folder = _own_tasks(run, index, evaluation)
    version = str(lm_eval.__version__)
    custom_tasks.confine_templates(lm_eval.utils)
    # chdir: relative paths in a custom task are resolved against its folder.
    with contextlib.chdir(folder or run.folder.root), _confined(evaluation), without_bars():
        manager = _manager(evaluation, folder)
        names = list(evaluation.tasks or ())
        _known(names, manager)
        work = run.folder.root / "evaluations"
        work.mkdir(exist_ok=True)
        found = {}
        run.progress.start(len(names), 0)
        for done, name in enumerate(names, start=1):
            kept = work / f"{evaluation.label}-{scores.NO_NAME.sub('_', name)}.json"
            # One file per task: a relaunch repeats only the unfinished one.
            if not kept.exists():
                write_file(kept, json.dumps(_task(run, evaluation, name, manager), default=_plain).encode())
            found[name] = json.loads(kept.read_bytes())
            run.progress.tell(done)
    metrics: dict[str, Metric] = {}
    items: dict[str, str] = {}
    pairs: dict[str, Pair] = {}
    for name, result in found.items():
        metrics |= scores.metrics(name, result, run.wanted, evaluation)
        files = _items(result, evaluation, run)
        items |= files
        pairs |= scores.pairs(result, files, evaluation)
    data = {"tasks": {name: _about(result) for name, result in found.items()}}
    mark = _mark(evaluation, found, folder, version)
    pairs = {name: pair for name, pair in pairs.items() if name in metrics}
    return Measured(evaluation, mark, metrics, data, items, pairs, {"lm_eval": version})


def _own_tasks(run: Run, index: int, evaluation: EvaluationSpec) -> Path | None:
    if evaluation.include_path is None:
        return None
    local = run.job.inputs.get(f"evaluations.{index}.include_path") or evaluation.include_path
    folder = unpacked_path(Path(local).expanduser(), run.workspace).resolve()
    if not folder.is_dir():
        raise InputError(f"Folder {evaluation.include_path} with lm-eval tasks not found on this worker.")
    if not evaluation.run_code:
        custom_tasks.check(folder, _names())
    return folder


def _names() -> custom_tasks.Names:
    import lm_eval.api.metrics
    import lm_eval.filters  # noqa: F401 - they register themselves
    from lm_eval.api import registry

    known = registry.metric_registry, registry.aggregation_registry, registry.filter_registry
    return custom_tasks.Names(*(frozenset(each) for each in known))


def _confined(evaluation: EvaluationSpec) -> contextlib.AbstractContextManager[None]:
    if evaluation.run_code:
        return contextlib.nullcontext()
    import lm_eval
    from lm_eval.api import registry, task
    from lm_eval.tasks import _yaml_loader

    metrics = importlib.import_module("evaluate")
    return custom_tasks.confined(Path(lm_eval.__file__).parent, _yaml_loader, task, registry, metrics)


def _manager(evaluation: EvaluationSpec, folder: Path | None) -> Any:
    from lm_eval.tasks import TaskManager

    if folder is not None:
        # Indexing lm-eval's own thousands of tasks takes seconds.
        own = TaskManager(include_path=str(folder), include_defaults=False)
        if set(evaluation.tasks or ()) <= set(own.all_tasks):
            return own
    return TaskManager(include_path=None if folder is None else str(folder))


def _known(names: list[str], manager: Any) -> None:
    known = set(manager.all_tasks)
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=3)
            hint = f"Did you mean {', '.join(near)}?" if near else "`lm-eval ls tasks` lists the built-in tasks."
            raise InputError(f"lm-eval has no task {name!r}.", hint=hint)


def _task(run: Run, evaluation: EvaluationSpec, name: str, manager: Any) -> dict[str, Any]:
    """Run one task; the model's answers are cached, so that a relaunch does not compute them again."""
    from lm_eval import evaluator
    from lm_eval.models.huggingface import HFLM

    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    # It runs git in the current folder, which is not a repository: the log would show git's `fatal:`.
    evaluator.get_git_commit_hash = lambda: None
    model = run.subject.model()
    wrapped = HFLM(pretrained=model, tokenizer=run.subject.tokenizer, batch_size=evaluation.batch_size)
    cache = run.folder.root / "evaluations" / f"{evaluation.label}-{scores.NO_NAME.sub('_', name)}-answers"
    with _hub_named(name):
        found = evaluator.simple_evaluate(
            model=wrapped,
            tasks=[name],
            num_fewshot=evaluation.num_fewshot,
            limit=evaluation.limit,
            apply_chat_template=evaluation.apply_chat_template,
            task_manager=manager,
            use_cache=str(cache),
            log_samples=True,
            bootstrap_iters=run.wanted.resamples,
            confirm_run_unsafe_code=evaluation.run_code,
        )
    assert found is not None, "only rank 0 of several has a result"
    return {**{key: found.get(key) for key in _KEPT_KEYS}, "aggregations": _aggregations(found.get("configs") or {})}


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as a JSON value, and anything else as text."""
    return value.item() if getattr(value, "ndim", None) == 0 else str(value)


def _aggregations(configs: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return lm-eval's aggregation of each metric of each task."""
    from lm_eval.api import registry

    names = {registry.aggregation_registry[name]: name for name in registry.aggregation_registry}
    usual = {metric: names.get(registry.metric_agg_registry[metric]) for metric in registry.metric_agg_registry}
    found: dict[str, dict[str, str]] = {}
    for task, config in configs.items():
        own = {each["metric"]: each.get("aggregation") for each in config.get("metric_list") or () if "metric" in each}
        both = {name: own.get(name) or usual.get(name) for name in (*usual, *own)}
        found[task] = {str(name): how for name, how in both.items() if isinstance(how, str)}
    return found


@contextlib.contextmanager
def _hub_named(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        names = {type(each).__name__ for each in _chain(error)}
        texts = " ".join(str(each) for each in _chain(error))
        offline = "OfflineMode" in texts or any(word in each for each in names for word in _OFFLINE)
        if offline or "DatasetNotFoundError" in names:
            set_so = os.environ.get("HF_HUB_OFFLINE", "") not in {"", "0"}
            why = "HF_HUB_OFFLINE is set" if set_so else "the Hub does not respond"
            raise UnreachableError(
                f"The data of the lm-eval task {name} cannot be downloaded: {why}.",
                hint="Give the worker access to the Hub, or define the task with your own data (include_path).",
            ) from error
        raise


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _items(result: Mapping[str, Any], evaluation: EvaluationSpec, run: Run) -> dict[str, str]:
    """Write the items of each task; return the files by task."""
    files = {}
    for task in result.get("samples") or {}:
        target = run.items(f"{evaluation.label}_{scores.NO_NAME.sub('_', task)}")
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, "".join(json.dumps(line) + "\n" for line in scores.items(task, result)).encode())
        files[task] = str(target.relative_to(run.folder.root))
    return files


def _about(result: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "versions": result.get("versions"),
        "num_fewshot": result.get("n-shot"),
        "questions": {task: each.get("effective") for task, each in (result.get("n-samples") or {}).items()},
    }


def _mark(evaluation: EvaluationSpec, found: Mapping[str, Any], folder: Path | None, version: str) -> str:
    settings = evaluation.model_dump(
        mode="json", include={"tasks", "num_fewshot", "limit", "apply_chat_template", "type"}
    )
    questions = {
        task: sorted(str(sample.get("doc_hash")) for sample in samples)
        for result in found.values()
        for task, samples in (result.get("samples") or {}).items()
    }
    own = None if folder is None else custom_tasks.digest(folder)
    return summary.digest_of({**settings, "lm_eval": version, "own": own, "questions": questions})
