"""One function per API route: method, path, body and response type."""
