"""The program of a job on a Ray cluster: it reserves nodes, and runs one command on each of them.

    __main__         the entry point: reads the order, handles signals, reports the result
    diagnostics      requirements of a node, and pending reasons; independent of Ray
    placement_group  a placement group: one bundle on each of several nodes
    single_task      the nodes of one task: started together, and done when all are
    lasting_workers  long-running workers: a fixed number, each restarted when it ends
    demand           the number of tasks that wait for a worker
    node             the actor in a bundle
    guard            the process that ends the command when the actor dies

It runs in Ray's environment, where dependencies of the package may be missing: it imports the standard library, Ray,
and `tunefleet.integrations.clusters.ray_order`.
"""
