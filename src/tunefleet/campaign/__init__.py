"""Continuous training: durable cycles that act through the client, as a user would.

    reconciler ──▶ engine ──▶ steps ──▶ client (tasks of the fleet)
                     │           ╰────▶ providers (where training runs)
                     ▼
                   repository (durable state; `tunefleet.campaign.service`)

Each step stores its intent before it acts, and its outcome afterwards. After a crash the next holder first checks
whether the step has acted, so that nothing is paid for twice.
"""
