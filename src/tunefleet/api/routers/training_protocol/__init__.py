"""Routes of the training protocol: agents, jobs, federated trainers."""

from typing import Final

TRAINING_PREFIX: Final = "/api/training"
