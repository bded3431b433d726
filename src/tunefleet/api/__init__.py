"""The HTTP server: FastAPI app, authentication, thin routers, background loops.

A handler translates HTTP into one call of a service. SQL, placement and task logic stay out of this package; services
raise `TunefleetError`, and `problem_details` alone maps an error to a status code.
"""
