"""Capabilities and load of this machine, as reported to a backend."""

from __future__ import annotations

import dataclasses
import platform
import socket
from importlib.metadata import version
from typing import Any

from tunefleet.agent.agent import Agent
from tunefleet.runtime import envs
from tunefleet.runtime.environment import core_count
from tunefleet.runtime.gpu_allocation import described
from tunefleet.schemas.worker_link import Capabilities


def capabilities(agent: Agent) -> Capabilities:
    """Describe this agent."""
    figures = agent.system.read()
    return Capabilities(
        version=version("tunefleet"),
        hostname=socket.gethostname(),
        executors=agent.job_table.context.registry.offers(),
        slots={"job": agent.settings.max_jobs},
        cpu_count=core_count(),
        memory_total_bytes=figures.memory_total_bytes,
        memory_free_bytes=figures.memory_available_bytes,
        disk_free_bytes=figures.disk_free_bytes or 0,
        gpus=described(agent.gpus.devices),
        allow_code=agent.settings.allow_code,
        environments=envs.ready(),
        platform=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    )


def load(agent: Agent) -> dict[str, Any]:
    """Return the current load of the machine; unknown values are None."""
    figures = agent.system.read()
    names = ("index", "uuid", "name", "memory_used_bytes", "memory_total_bytes", "utilisation_percent",
             "temperature_c", "power_w")  # fmt: skip
    return {
        "cpu_percent": figures.cpu_percent,
        "memory_used_bytes": figures.memory_used_bytes,
        "memory_total_bytes": figures.memory_total_bytes,
        "disk_free_bytes": figures.disk_free_bytes,
        "net_sent_bytes": figures.network_sent_bytes,
        "net_received_bytes": figures.network_received_bytes,
        "gpus": [{name: getattr(gpu, name) for name in names} for gpu in agent.gpus.devices],
    }


def diagnose(agent: Agent) -> dict[str, Any]:
    """Return diagnostics for support, without secrets."""
    settings = agent.settings
    shown = {
        name: str(value)
        for name, value in settings.model_dump(exclude={"api_key", "key"}).items()
        if not name.startswith("_")
    }
    return {
        "capabilities": capabilities(agent).model_dump(mode="json"),
        "load": load(agent),
        "settings": {**shown, "api_key": _set(settings.api_key), "key": _set(settings.key)},
        "jobs": [
            {"job_id": job.job_id, "state": job.record.state, "error": job.record.error, "muted": job.record.muted}
            for job in agent.job_table.jobs()[-50:]
        ],
        "packages": {name: _version(name) for name in ("torch", "transformers", "trl", "peft", "datasets", "httpx")},
        "gpus": [dataclasses.asdict(gpu) for gpu in agent.gpus.devices],
    }


def _set(secret: object) -> str:
    return "not set" if secret is None else "set"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except ModuleNotFoundError:
        return None
