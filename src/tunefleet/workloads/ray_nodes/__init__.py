"""The program of a job on a Ray cluster: it takes nodes, and runs one command on each of them.

    __main__         the entry: takes the order, waits for signals, says how it ended
    diagnostics      what a node must have, and why there is none; knows no Ray
    placement_group  a placement group: one bundle on each of several nodes
    single_task      the nodes of one task: begun together, and over when all are
    lasting_workers  workers that last: as many as are wanted, each begun again when it ends
    demand           how many tasks wait for one
    node             the actor in a bundle
    guard            the process that ends the command when the actor is gone

It runs in Ray's environment, where the package may lack what it needs elsewhere: it imports the standard library, Ray,
and `tunefleet.integrations.clusters.ray_order`.
"""
