"""Which task goes to which worker, and why one waits: queue, fair shares, gangs, coalescing, autoscaling."""
