"""How a worker and the server meet: the interface, HTTP long poll, and Redis streams (`redis_keys` has the key table).

A link only carries messages of `schemas.worker_link`; truth lives in the server's store. Refuses to know what an
attempt is for.
"""
