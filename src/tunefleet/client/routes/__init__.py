"""One function for each route of the API: method, path, body and answer."""
