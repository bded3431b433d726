"""Load tests: a real server with simulated workers.

    plan                   parameters of a load
    profile                capabilities of the workers
    simulated_worker       one simulated worker; poll_exchange and held_attempt are its parts
    crowd, __main__        many workers in one process, and that process
    processes              the parent's side of these processes
    load_run               one load, from submission to the final check
    sampling               resource use of the server
    load_report, totals    the report, and how it is computed
    curves, plot           growth of the costs with the load

The workers use the real protocol: they register, hold an exchange open, renew, accept, finish and execute commands, but
they do not train. Uses the server only through its API.
"""
