"""Make `docs/reference/sdk.md` from the client's classes: every method with its arguments, result and first line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from tunefleet.client import resources
from tunefleet.client.api import Client, ServerVerbs
from tunefleet.client.verb import ApiMethod, Iteration, TaskIteration, TaskVerb

NOUNS = (
    ("client", ServerVerbs),
    ("client.workflows", resources.WorkflowVerbs),
    ("client.tasks", resources.TaskVerbs),
    ("client.events", resources.EventVerbs),
    ("client.artifacts, client.data", resources.ArtifactVerbs),
    ("client.workers", resources.WorkerVerbs),
    ("client.federations", resources.FederationVerbs),
    ("client.campaigns", resources.CampaignVerbs),
    ("client.models", resources.ModelVerbs),
    ("client.endpoints", resources.EndpointVerbs),
    ("client.notifications", resources.NotificationVerbs),
    ("client.projects", resources.ProjectVerbs),
    ("client.keys", resources.KeyVerbs),
    ("run: the result of `client.submit`", resources.RunVerbs),
)
_RESULT = re.compile(r"^(?:Call|Flow|Stream)\[(.*)\]$")
_MODULES = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Z])")


def _annotation(annotation: object) -> str:
    return _MODULES.sub("", str(annotation))


def _arguments(parameters: list[inspect.Parameter]) -> str:
    shown = []
    keywords = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            keywords = True
            shown.append("*")
        if parameter.default is parameter.empty:
            shown.append(f"{parameter.name}: {_annotation(parameter.annotation)}")
        elif callable(parameter.default):
            shown.append(f"{parameter.name}=…")
        else:
            shown.append(f"{parameter.name}={parameter.default!r}")
    return ", ".join(shown)


def _methods(described: type) -> Iterator[str]:
    for name, verb in vars(described).items():
        if not isinstance(verb, (ApiMethod, Iteration, TaskVerb, TaskIteration)):
            continue
        signature = inspect.signature(verb.describe)
        parameters = list(signature.parameters.values())
        if isinstance(verb, (TaskVerb, TaskIteration)):
            del parameters[0]
        match = _RESULT.match(str(signature.return_annotation))
        result = _annotation(match[1] if match else signature.return_annotation)
        if isinstance(verb, (Iteration, TaskIteration)):
            result = f"iterator of {result}"
        meaning = (inspect.getdoc(verb.describe) or "").splitlines()[0]
        yield f"- `{name}({_arguments(parameters)})` → `{result}`:\n  {meaning}"


def page() -> str:
    """Return the text of `docs/reference/sdk.md`."""
    submit = inspect.signature(Client.submit)
    parts = [
        "# Python client\n",
        "<!-- Written by `make docs` from src/tunefleet/client; edit the docstrings there. -->\n",
        "`tunefleet.Client` is synchronous. `tunefleet.AsyncClient` has the same methods as coroutines, and returns",
        "asynchronous iterators where this page lists iterators. Methods return frozen, typed models from",
        "`tunefleet.schemas.api`, and raise the exceptions in `tunefleet.errors`. You can shorten any id to a unique",
        "prefix.\n",
        "For examples, see [The Python client](../how-to/python-client.md).\n",
        "`Client(url=None, key=None, *, patience_s=10.0)`\n",
        "Without `url` and `key`, the client uses `TUNEFLEET_URL` and `TUNEFLEET_KEY`, or the values saved by",
        "`tunefleet up` or `tunefleet login`. While the server does not respond, idempotent calls are retried for",
        "`patience_s` seconds.\n",
        f"- `client.submit({_arguments(list(submit.parameters.values())[1:])})` → `Run`:",
        f"  {(inspect.getdoc(Client.submit) or '').splitlines()[0]}",
        "- `client.close()`: Close the connections. You can also use the client as a context manager.\n",
    ]
    for title, described in NOUNS:
        parts += [f"## {title}\n", *_methods(described), ""]
    return "\n".join(parts)
