"""Frozen settings, one class per process; the only package that reads `os.environ`, apart from `trainer_control`.

Every setting has a name that starts with `TUNEFLEET_`, apart from those of other projects, such as `HF_TOKEN`; names
of compatible systems are accepted, too. Each process builds its settings once, in its `main`, and passes them down.
`.env` is read there and nowhere else.
"""

from tunefleet.settings.agent import AgentSettings
from tunefleet.settings.base import (
    ClientSettings,
    ClusterSettings,
    NodeSettings,
    ProcessSettings,
    RedisSettings,
    SharedGpuSettings,
    TlsSettings,
    TracingSettings,
)
from tunefleet.settings.campaign import CampaignSettings, PublishSettings, TrackingSettings
from tunefleet.settings.environment import (
    SECRET_PREFIX,
    SECRETS_DIR,
    cloud_variables,
    forget_secret_variables,
    inherited_environment,
    is_dotenvs,
    notify_socket,
    replace_environment,
    secret_variables,
    unsupported,
    variables_for,
    variables_of,
    without_credentials,
    without_dotenv,
)
from tunefleet.settings.loader import load, load_agent, load_worker, saved_server
from tunefleet.settings.server import ServerSettings
from tunefleet.settings.worker import (
    ApiSettings,
    CacheSettings,
    EngineSettings,
    SecretSettings,
    TransferSettings,
    WorkerSettings,
)

__all__ = [
    "SECRETS_DIR",
    "SECRET_PREFIX",
    "AgentSettings",
    "ApiSettings",
    "CacheSettings",
    "CampaignSettings",
    "ClientSettings",
    "ClusterSettings",
    "EngineSettings",
    "NodeSettings",
    "ProcessSettings",
    "PublishSettings",
    "RedisSettings",
    "SecretSettings",
    "ServerSettings",
    "SharedGpuSettings",
    "TlsSettings",
    "TracingSettings",
    "TrackingSettings",
    "TransferSettings",
    "WorkerSettings",
    "cloud_variables",
    "forget_secret_variables",
    "inherited_environment",
    "is_dotenvs",
    "load",
    "load_agent",
    "load_worker",
    "notify_socket",
    "replace_environment",
    "saved_server",
    "secret_variables",
    "unsupported",
    "variables_for",
    "variables_of",
    "without_credentials",
    "without_dotenv",
]
