"""What a federated trainer asks of the server."""
