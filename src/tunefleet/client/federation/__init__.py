"""The server API of a federated trainer."""
