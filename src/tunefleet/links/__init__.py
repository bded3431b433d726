"""How a worker and the server meet: the interface, and HTTP long poll.

A link only carries messages of `wire.link`; truth lives in the server's store. Refuses to know what an attempt is for.
"""
