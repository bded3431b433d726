"""Federations: many workers train one adapter; their updates meet in rounds, and each round makes a version.

    accepting ──▶ rounds ──▶ keeper ──▶ aggregate ──▶ publish ──▶ callbacks
    (an update)   (open,     (who works  (files, in    (version, artifact, event)
                   closed)    on which)   a thread)

The state of a round lies in the store and says how far it has come; whoever finds it, this server or another, goes on
from there. The arithmetic is `tunefleet.federation`'s.
"""
