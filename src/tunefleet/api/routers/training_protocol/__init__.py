"""Routes of the training protocol: agents, jobs, federated trainers."""
