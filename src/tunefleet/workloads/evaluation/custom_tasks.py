"""Custom lm-eval tasks of a workflow: code in them is rejected, and templates run in a sandbox.

There are two layers. `check` reads the files before lm-eval does, and reports code in them. `confined` replaces the
functions of lm-eval that load code, for anything that `check` does not foresee.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tunefleet.errors import InputError
from tunefleet.workloads.common import containment

# Keys that run external code if true, anywhere in a task.
_RUNS: Final = frozenset({"hf_evaluate", "trust_remote_code", "custom_generate"})
# Keys whose value is a path, an address or a name on the Hub.
_OPENED: Final = frozenset({"dataset_path", "dataset_name", "dataset_kwargs", "use_prompt"})
_HINT: Final = "Set `run_code: true` if you trust it, and start the worker with --allow-code."


@dataclass(frozen=True, slots=True)
class Names:
    """Names built into lm-eval; for a metric of another name it loads code of that name."""

    metrics: Collection[str]
    aggregations: Collection[str]
    filters: Collection[str]


class _Scan(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the same parser as lm-eval
    """Reads a task without executing anything, and keeps tags that would execute code."""


def _tagged(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Any:
    del loader, node  # the tagged object is never constructed
    return {"!": f"!{suffix}"}


_Scan.add_multi_constructor("!", _tagged)
_Scan.add_multi_constructor("tag:yaml.org,2002:python/", _tagged)


def check(folder: Path, names: Names) -> None:
    """Reject a folder with tasks that run code.

    Raises:
        InputError: If a task runs code, cannot be read, or includes a file from outside; names the file and the code.
    """
    folder = folder.resolve()
    for card in (path for path in _files(folder) if path.name in containment.CARDS):
        containment.check_dataset(card.parent)
    waiting = [path for path in _files(folder) if path.suffix in {".yaml", ".yml"}]
    # Includes may be circular.
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop().resolve()
        if path in seen:
            continue
        seen.add(path)
        content = _read(path)
        for what in _running(content, names):
            raise InputError(f"The lm-eval task {path.name} runs code: {what}.", hint=_HINT)
        for text in _opened(content):
            if not _is_inside(text, folder):
                raise InputError(
                    f"The lm-eval task {path.name} reads {text}, which is outside of its folder.",
                    hint="Copy it into the folder, and use its relative path.",
                )
        waiting += _included(path, content, folder)


def _read(path: Path) -> Any:
    try:
        return yaml.load(path.read_bytes(), _Scan)  # noqa: S506 - a safe loader that keeps tags
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"The lm-eval task {path.name} is not valid YAML: {error}.") from None


def _included(path: Path, content: Any, folder: Path) -> Iterator[Path]:
    """Yield the files that a task includes, whatever their suffix."""
    included = content.get("include") if isinstance(content, dict) else None
    for each in included if isinstance(included, list) else [] if included is None else [included]:
        target = (path.parent / str(each)).resolve()
        if not target.is_relative_to(folder):
            raise InputError(
                f"The lm-eval task {path.name} includes {each}, which is outside of its folder.",
                hint="Copy it into the folder, and include its relative path.",
            )
        if not target.is_file():
            raise InputError(
                f"The lm-eval task {path.name} includes {each}, which does not exist.",
                hint="Put it into the folder, next to the file that includes it.",
            )
        yield target


def _opened(value: Any, *, opened: bool = False) -> Iterator[str]:
    """Yield each text that the `datasets` library may open."""
    if isinstance(value, str):
        if opened:
            yield value
    elif isinstance(value, list):
        for each in value:
            yield from _opened(each, opened=opened)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _opened(each, opened=opened or key in _OPENED)


def _is_inside(text: str, folder: Path) -> bool:
    if containment.opens_elsewhere(text) or containment.escapes_folder(text):
        return False
    try:
        return text.startswith("hf://") or (folder / text).resolve().is_relative_to(folder)
    except (OSError, ValueError):
        return False


def digest(folder: Path) -> str:
    """Return a digest of all files of a folder and their relative names."""
    found = hashlib.sha256()
    for path in _files(folder):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        found.update(f"{path.relative_to(folder)}\0{content}\n".encode())
    return found.hexdigest()


def confine_templates(harness: Any) -> None:
    """Restrict the templates of tasks to the row that they are rendered with."""
    before = harness.env
    confined = ImmutableSandboxedEnvironment(undefined=before.undefined, keep_trailing_newline=True)
    confined.filters["regex_replace"] = before.filters["regex_replace"]
    harness.env = confined


@contextlib.contextmanager
def confined(own: Path, reader: Any, tasks: Any, registry: Any, metrics: Any) -> Iterator[None]:
    """Restrict tasks to code that lm-eval ships."""
    resolve, get_metric, load = reader._import_func_in_yml, tasks.get_metric, metrics.load

    def only_own(name: str, folder: Path) -> Any:
        if not Path(folder).resolve().is_relative_to(own.resolve()):
            raise InputError(f"An lm-eval task runs code: it uses !function {name}.", hint=_HINT)
        return resolve(name, folder)

    def only_known(name: str, elsewhere: bool = False) -> Any:
        if elsewhere or name not in registry.metric_registry:
            raise InputError(f"An lm-eval task runs code: its metric {name} is not built into lm-eval.", hint=_HINT)
        return get_metric(name)

    def nothing(name: str, *_: Any, **__: Any) -> Any:
        raise InputError(f"An lm-eval task runs code: it loads the metric {name}.", hint=_HINT)

    reader._import_func_in_yml, tasks.get_metric, metrics.load = only_own, only_known, nothing
    try:
        yield
    finally:
        reader._import_func_in_yml, tasks.get_metric, metrics.load = resolve, get_metric, load


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _running(value: Any, names: Names) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _running(each, names)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _by_key(key, each, names)
            yield from _running(each, names)


def _by_key(key: Any, value: Any, names: Names) -> Iterator[str]:
    if key == "!":
        yield f"it has {value}"
    elif (key in _RUNS and value) or key == "unsafe_code":
        # unsafe_code even if false: in a group it would switch off the safeguard of a built-in task.
        yield f"it has {key}: {value}"
    elif key == "dataset_path" and isinstance(value, str) and value.endswith(".py"):
        yield f"its dataset_path is {value}"
    elif key == "metric_list":
        yield from _unknown(value, "metric", names.metrics)
        yield from _unknown(value, "aggregation", names.aggregations)
    elif key == "filter":
        yield from _unknown(value, "function", names.filters)


def _unknown(listed: Any, key: str, known: Collection[str]) -> Iterator[str]:
    for each in listed if isinstance(listed, list) else [listed]:
        if isinstance(each, dict) and key in each:
            name = each[key]
            tagged = isinstance(name, dict)  # reported as a tag
            if not tagged and not (isinstance(name, str) and name in known):
                yield f"its {key} {name} is not built into lm-eval"
