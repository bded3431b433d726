"""Federations: many workers train one adapter in rounds; each round aggregates their updates into a version.

    acceptance ──▶ rounds ──▶ scheduler ──▶ aggregation ──▶ publisher ──▶ webhooks
    (an update)    (open,     (claims,       (files, in a    (version, artifact, event)
                    closed)    leases)        thread)

The state of a round is in the database, so that any server can resume it. The arithmetic is in `tunefleet.federation`.
"""
