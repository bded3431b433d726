"""The HTTP server: FastAPI app, authentication, thin routers, background loops.

It translates: HTTP in, a service's verb called, HTTP out. It refuses to know SQL, placement, and what a task does;
services raise `TunefleetError`, and `problems` is the one place that turns an error into a status code.
"""
