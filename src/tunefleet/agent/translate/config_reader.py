"""Reads a config key by key, and tracks used, contradicting and unused keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tunefleet.errors import Fault


class ConfigReader:
    """Reads a config and writes a spec."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.spec: dict[str, Any] = {}
        self.faults: list[Fault] = []
        self.warnings: list[str] = []
        self._config = config
        self._used: set[str] = set()
        self._origin: dict[str, str] = {}

    def look(self, path: str) -> Any:
        """Return a value without marking its key as used; None if it is not set."""
        value: Any = self._config
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def take(self, *paths: str) -> Any:
        """Use a key that has several spellings; return its value, or None if it is not set."""
        return self.taken(*paths)[0]

    def taken(self, *paths: str) -> tuple[Any, str]:
        """Use a key; return its value and the spelling in the config."""
        self._used.update(paths)
        given = [(path, value) for path in paths if (value := self.look(path)) is not None]
        if not given:
            return None, paths[0]
        first, value = given[0]
        for path, other in given[1:]:
            if other != value:
                self.fault(path, f"contradicts {first} ({other!r} and {value!r})", "remove one of them")
        return value, first

    def move(self, to: str, *paths: str, default: Any = None) -> Any:
        """Use a key and put its value into the spec under another name; return the value."""
        value, path = self.taken(*paths)
        value = default if value is None else value
        if value is not None:
            self.put(to, value, path)
        return value

    def put(self, to: str, value: Any, origin: str | None = None) -> None:
        """Write a value into the spec."""
        *parents, name = to.split(".")
        block = self.spec
        for part in parents:
            block = block.setdefault(part, {})
        block[name] = value
        if origin is not None:
            self._origin[to] = origin

    def fault(self, path: str, message: str, hint: str | None = None) -> None:
        """Record an error of a key."""
        self.faults.append(Fault(f"config.{path}", message, hint=hint))

    def warn(self, path: str, why: str) -> None:
        """Record a warning for a key that has no effect or a different one."""
        self._used.add(path)
        self.warnings.append(f"config.{path} {why}.")

    def ignore(self, *paths: str, why: str = "has no effect here") -> None:
        """Use keys without effect; warn about those that are set."""
        for path in paths:
            value = self.look(path)
            if value is not None and value != [] and path not in self._used:
                self.warn(path, why)

    def left(self) -> list[str]:
        """Return the unused keys."""
        return list(_leaves(self._config, "", self._used))

    def renamed(self, fault: Fault) -> Fault:
        """Map an error of the spec to the key of the config."""
        path = fault.path.removeprefix("spec.")
        while path and path not in self._origin:
            path = path.rpartition(".")[0]
        name = f"config.{self._origin[path]}" if path else f"config ({fault.path})"
        return Fault(name, fault.message, hint=fault.hint)


def _leaves(value: Any, path: str, used: set[str]) -> Iterator[str]:
    if path in used:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else str(name), used)
    elif value is not None:
        yield path


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults and limits of one agent."""

    save_steps: int = 500
    logging_steps: int = 10
    mixed_precision: bool = True
    gpu: bool = False
    bf16: bool = False
    allow_code: bool = False
