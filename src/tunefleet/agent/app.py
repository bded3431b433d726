"""The agent's web app: its routes and who may call them. Made of an open `Agent`; opens nothing itself."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

import tunefleet
from tunefleet.agent import problems, routes
from tunefleet.agent.agent import Agent
from tunefleet.agent.verbs import Verbs


def create_app(agent: Agent, verbs: Verbs) -> FastAPI:
    """Make the app.

    Args:
        agent: What the routes work on; the caller closes it.
        verbs: What the agent can be told about itself.
    """
    app = FastAPI(
        title="Tunefleet agent",
        version=tunefleet.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    key = agent.settings.key
    app.state.agent = agent
    app.state.verbs = verbs
    app.state.key = key.get_secret_value() if key is not None else None
    app.state.origins = frozenset(agent.settings.cors_origins)
    app.include_router(routes.router)
    problems.install(app)
    if agent.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(agent.settings.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key"],
            allow_private_network=True,
        )
    return app
