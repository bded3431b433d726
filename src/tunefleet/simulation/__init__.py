"""Loads a real server with simulated workers, and measures what that costs.

    plan                what is to be simulated
    profile, documents  what its workers have, what its tasks ask for
    worker              one simulated worker
    crowd, __main__     many of them in one process, and that process
    processes           the processes, from outside
    load_run            one load from its submits to its check
    sampling            what the server takes
    report, curves      what was found, and how it grows with the load

The workers keep the protocol to the letter: they register, hold an exchange open, renew by it, accept, finish, obey.
What they do not do is train. Knows the server by its API alone.
"""
