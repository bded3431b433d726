"""`api`: calls an HTTP API, once or for each item, from within the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, Final
from urllib.parse import quote, urlsplit

import orjson

from tunefleet.client.external.external_http import HttpRequest, HttpResponse, ask
from tunefleet.client.external.interrupt import CancelToken
from tunefleet.errors import InputError, MachineError, UnreachableError
from tunefleet.executors.base import LightExecutor
from tunefleet.runtime.secrets import Redaction
from tunefleet.schemas.worker_link import Offer
from tunefleet.settings import ApiSettings, TransferSettings, load
from tunefleet.spec import ApiTaskSpec, load_task_spec
from tunefleet.spec.expressions.graph_template import to_list
from tunefleet.spec.expressions.size_limits import SizeBudget
from tunefleet.spec.tasks.api_and_python import PROMPT, ApiSpec

_CHAT: Final = "/v1/chat/completions"
_TOKEN: Final = "TUNEFLEET_API_TASK_TOKEN"
_SHOWN: Final = 200


class ApiExecutor(LightExecutor):
    """Sends up to eight requests at a time; the responses are in the order of the items."""

    kind = "api"

    def run(self, offer: Offer) -> dict[str, Any]:
        """Send the requests and return the responses; see `run_until`."""
        return self.run_until(offer, CancelToken())

    def run_until(self, offer: Offer, stop: CancelToken) -> dict[str, Any]:
        """Send the requests and return the responses; an item that failed has an `error`.

        Raises:
            InputError: If every request failed, because its URL is not allowed or the host rejected it.
            UnreachableError: If every request failed, and one of them because its host is unreachable or busy.
            MachineError: If neither the task nor the worker sets a URL.
            Stopped: If the task was cancelled.
        """
        spec = load_task_spec(offer.spec)
        assert isinstance(spec, ApiTaskSpec), "the worker runs a kind with its own executor"
        service = load(ApiSettings)
        api, allowed = _with_address(spec.api, service)
        prompts = _prompts(spec, offer.spec)
        questions = [_question(api, prompt) for prompt in prompts]
        token = service.nebula_api_token if spec.api.url is None else None
        hidden = Redaction({_TOKEN: token.get_secret_value()} if token is not None else {})
        try:
            items = _asked(api, questions, allowed, stop)
        except (InputError, UnreachableError) as error:
            raise type(error)(hidden.text(error.message), hint=error.hint) from error
        for index, note in enumerate(_notes(spec)):
            items[index]["metadata"] = note
        for item, prompt in zip(items, prompts, strict=True):
            if prompt is not None:
                item["prompt"] = prompt
        result: dict[str, Any] = hidden.value(_result(items))
        return result


def _with_address(api: ApiSpec, service: ApiSettings) -> tuple[ApiSpec, tuple[str, ...]]:
    """Return the request with a URL, and the allowed private hosts."""
    allowed = load(TransferSettings).url_allow
    if api.url is not None:
        return api, allowed
    if service.nebula_api_base_url is None:
        raise MachineError(
            "The task has no URL, and this worker has no default.",
            hint="Set spec.api.url, or start the worker with TUNEFLEET_API_TASK_URL.",
        )
    headers = dict(api.headers or {})
    if service.nebula_api_token is not None and "authorization" not in {name.lower() for name in headers}:
        headers["Authorization"] = f"Bearer {service.nebula_api_token.get_secret_value()}"
    url = service.nebula_api_base_url.rstrip("/") + _CHAT
    # The worker's operator set this host, so it is allowed even if it is private.
    return api.model_copy(update={"url": url, "headers": headers}), (*allowed, urlsplit(url).hostname or "")


def _prompts(spec: ApiTaskSpec, written: Mapping[str, Any]) -> list[str | None]:
    if spec.data is None:
        return [None]
    texts: list[Any] = list(spec.data.items or ())
    if spec.data.type == "graph_template":
        texts = to_list(written["data"], {}, SizeBudget())["items"]
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"spec.data.items.{number} is not a string: its reference was not resolved.")
    return list(texts)


def _notes(spec: ApiTaskSpec) -> Sequence[Mapping[str, Any]]:
    return () if spec.data is None else (spec.data.metadata or spec.data.items_metadata or ())


def _question(api: ApiSpec, prompt: str | None) -> HttpRequest:
    headers = {name: _filled(value, prompt) for name, value in (api.headers or {}).items()}
    for name, value in headers.items():
        if any(character in value for character in "\0\r\n"):
            raise InputError(f"spec.api.headers.{name} would contain a line break of an item.")
    body: dict[str, Any] = {}
    if api.json_body is not None:
        body = {"json": _filled(api.json_body, prompt)}
    elif api.body is not None:
        body = {"content" if isinstance(api.body, str) else "json": _filled(api.body, prompt)}
    elif api.form is not None:
        body = {"content" if isinstance(api.form, str) else "data": _filled(api.form, prompt)}
    return HttpRequest(
        method=api.method,
        # Quoted completely: an item cannot change the path or the query of the URL.
        url=str(api.url).replace(PROMPT, quote(prompt or "", safe="")),
        headers=headers,
        params=_filled(api.params or {}, prompt),
        body=body,
        timeout_s=api.timeout_sec,
        verify_tls=api.verify_tls,
        follow_redirects=api.follow_redirects,
        max_body_bytes=api.response.max_body_bytes,
        retries=api.retries,
    )


def _filled(value: Any, prompt: str | None) -> Any:
    if isinstance(value, str):
        return value if prompt is None else value.replace(PROMPT, prompt)
    if isinstance(value, Mapping):
        return {_filled(key, prompt): _filled(each, prompt) for key, each in value.items()}
    return [_filled(each, prompt) for each in value] if isinstance(value, list | tuple) else value


def _asked(
    api: ApiSpec, questions: Sequence[HttpRequest], allowed: Sequence[str], stop: CancelToken
) -> list[dict[str, Any]]:
    """Return the responses in the order of the requests; raises if all have failed."""
    faults: dict[int, InputError | UnreachableError] = {}

    def one(index: int) -> dict[str, Any]:
        reply = None
        try:
            reply = ask(questions[index], allowed=allowed, stop=stop)
            _check(api, index, reply)
        except (InputError, UnreachableError) as error:
            # The other responses are kept: they may have cost money.
            faults[index] = error
            return _item(api, index, reply) | {"output": None, "error": str(error)}
        return _item(api, index, reply)

    with ThreadPoolExecutor(max_workers=api.concurrency, thread_name_prefix="api") as pool:
        futures = [pool.submit(one, index) for index in range(len(questions))]
        done, left = wait(futures, return_when=FIRST_EXCEPTION)
        for future in left:
            future.cancel()
        for future in done:
            future.result()  # raises its exception
        items = [future.result() for future in futures]
    if len(faults) == len(items):
        raise _worth_another_try([faults[index] for index in range(len(items))])
    return items


def _worth_another_try(faults: Sequence[InputError | UnreachableError]) -> InputError | UnreachableError:
    """Return the first error that a retry may fix, else the first."""
    return next((fault for fault in faults if isinstance(fault, UnreachableError)), faults[0])


def _check(api: ApiSpec, index: int, reply: HttpResponse) -> None:
    if api.response.raise_for_status and reply.status >= 400:
        body = " ".join(reply.text.split())[:_SHOWN]
        message = f"Item {index}: {reply.host} answers {reply.status}{f': {body}' if body else ''}."
        raise UnreachableError(message) if reply.transient else InputError(message)


def _item(api: ApiSpec, index: int, reply: HttpResponse | None) -> dict[str, Any]:
    if reply is None:
        nothing = dict.fromkeys(("status_code", "output", "json", "usage", "text"))
        return {"index": index, **nothing, "truncated": False}
    parsed = _parsed(reply) if api.response.parse_json else None
    usage = parsed.get("usage") if isinstance(parsed, dict) else None
    item: dict[str, Any] = {
        "index": index,
        "status_code": reply.status,
        "output": _said_in(parsed, reply.text),
        "json": parsed,
        "usage": usage if isinstance(usage, dict) else None,
        "text": reply.text if api.response.return_body else None,
        "truncated": reply.truncated,
    }
    if not api.response.return_body and parsed is None:
        item["output"] = None
    return item | ({"headers": reply.headers} if api.response.include_headers else {})


def _parsed(reply: HttpResponse) -> Any:
    try:
        return orjson.loads(reply.text)
    except orjson.JSONDecodeError:
        return None


def _said_in(parsed: Any, text: str) -> str:
    """Return the text of a chat or completion response, or else the whole body."""
    try:
        choice = parsed["choices"][0]
        found = choice["message"]["content"] if "message" in choice else choice["text"]
    except (KeyError, IndexError, TypeError):
        return text
    return found if isinstance(found, str) else text


def _result(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first, alone = items[0], len(items) == 1
    failed = sum("error" in item for item in items)
    usage: dict[str, Any] = {"num_requests": len(items), "failed": failed}
    statuses = [item["status_code"] for item in items if item["status_code"] is not None]
    for item in items:
        for name, value in (item["usage"] or {}).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                usage[name] = usage.get(name, 0) + value
    return {
        "ok": not failed and max(statuses) < 400,
        "executor": "api",
        # The worst status of all responses.
        "status_code": max(statuses),
        "json": first["json"] if alone else None,
        "text": first["text"] if alone else None,
        "usage": usage,
        "items": list(items),
    }
