"""The calls of endpoints, for users and for the worker that relays requests."""

from __future__ import annotations

from tunefleet.client.call import Call, model, nothing, path
from tunefleet.schemas.api import Page
from tunefleet.schemas.endpoints import EndpointView, FramesReceipt, RelayedRequests, RelayPoll, ResponseFrames


def list_endpoints() -> Call[Page[EndpointView]]:
    """List the endpoints of the project."""
    return Call("GET", path("endpoints"), model(Page[EndpointView]))


def get_endpoint(name: str) -> Call[EndpointView]:
    """Return an endpoint with its replicas and its usage."""
    return Call("GET", path("endpoints", name), model(EndpointView))


def stop_endpoint(name: str) -> Call[None]:
    """Stop an endpoint: its tasks are cancelled."""
    return Call("DELETE", path("endpoints", name), nothing)


def fetch_requests(task_id: str, poll: RelayPoll) -> Call[RelayedRequests]:
    """Poll for requests, as the worker that relays them."""
    return Call(
        "POST",
        path("tasks", task_id, "serve", "requests"),
        model(RelayedRequests),
        body=poll,
        # Delivered requests are not delivered again: a retry could lose them.
        repeatable=False,
        read_timeout_s=poll.wait_s + 15.0,
    )


def send_frames(task_id: str, frames: ResponseFrames) -> Call[FramesReceipt]:
    """Send parts of responses, as the worker that relays them."""
    return Call("POST", path("tasks", task_id, "serve", "frames"), model(FramesReceipt), body=frames, repeatable=False)
