"""One light file per task kind: which program runs it, from which inputs, and what its outputs are.

Executors are found by the entry point group `tunefleet.executors`, so that a package can bring kinds of its own. They
refuse to know where an attempt came from and import no training library: a job's process does that.
"""
