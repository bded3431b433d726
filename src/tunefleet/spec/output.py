"""`spec.output`: where results go, and what of them must be there."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tunefleet.spec.base import (
    Block,
    Headers,
    NotBool,
    RelativePath,
    Text,
    Timeout,
    Url,
    as_list,
    many_wrong,
    wrong,
)

Folder = Annotated[RelativePath, AfterValidator(lambda name: name.rstrip("/"))]
"""A file or a folder, with or without a slash at its end."""

_RETRY: Final = ("retries", "retry_backoff_s")


def _folder(value: str) -> str:
    if "://" in value or ".." in value.replace("\\", "/").split("/"):
        raise wrong("must be a folder", "an absolute path, or one below RESULTS_DIR, without ..")
    return value


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


class DestinationSpec(Block):
    """`output.destination`: where results go. They always reach the server that placed the task, too."""

    type: Literal["local", "http"] = "local"
    """`local`: a folder of the worker. `http`: an address gets the result and the files, and archives are made:
    `final_model.tar.gz` or `final_lora.tar.gz`."""
    path: Annotated[Text, AfterValidator(_folder)] | None = None
    """With `local`: a folder; the task's files lie in `PATH/TASK_ID`. A relative one is below `RESULTS_DIR`."""
    url: Url | None = None
    """With `http`: results are posted here, files to `URL/TASK_ID/files`; by default the server that placed the
    task."""
    method: Annotated[Literal["POST", "PUT"], BeforeValidator(_upper)] = "POST"
    """With `http`: method of the request with the result; files are always sent by POST."""
    headers: Headers | None = None
    """With `http`: sent with each request."""
    timeout_s: Timeout = Field(default=30.0, alias="timeoutSec")
    """With `http`: seconds to wait for an answer."""
    retries: Annotated[int, Field(ge=0, le=100), NotBool] | None = None
    """With `http`: further tries of a delivery that failed; by default it is tried for as long as the worker's
    `TUNEFLEET_DELIVERY_PATIENCE_S` says (a day). The task itself is not run again."""
    retry_backoff_s: Annotated[float, Field(ge=0, le=3600), NotBool] = Field(default=0.8, alias="retryBackoffSec")
    """With `http` and `retries`: seconds before the first of them; doubled for each further one."""

    @model_validator(mode="after")
    def _fitting(self) -> DestinationSpec:
        other = ("path",) if self.type == "http" else ("url", "method", "headers", "timeout_s", *_RETRY)
        faults: list[tuple[str, str, str | None]] = []
        for name in other:
            if name in self.model_fields_set and getattr(self, name) is not None:
                key = type(self).model_fields[name].alias or name
                wanted = "local" if name == "path" else "http"
                faults.append((key, f"has no effect with type: {self.type}", f"write type: {wanted}, or leave it out"))
        if faults:
            raise many_wrong(faults)
        return self


class OutputSpec(Block):
    """`spec.output`: what is delivered beside the model or adapter."""

    destination: DestinationSpec = Field(default_factory=DestinationSpec)
    """Whether archives are made."""
    artifacts: Annotated[tuple[Folder, ...], BeforeValidator(as_list)] = ()
    """Names of what the task must leave: `responses.json` (or `results.json`), `logs`, `final_lora` or `final_model`
    are always delivered; a name with `.tar.gz` asks for the archive, too."""

    def wants_archive(self, name: str) -> bool:
        """Whether `<name>.tar.gz` is to be made.

        Args:
            name: Name of the folder, `final_lora` or `final_model`.
        """
        return self.destination.type == "http" or f"{name}.tar.gz" in self.artifacts
