"""Continuous training: durable cycles whose every act goes through the client, as a user's would.

    keeper ──▶ engine ──▶ steps ──▶ client (tasks of the fleet)
                 │           ╰────▶ providers (who trains)
                 ▼
               book (what is durable; `tunefleet.orchestrator.campaigns`)

Each step stores what it is about to do before it acts, and what became of it after. Whoever goes on after a kill asks
first whether it was done, so that nothing is paid for twice.
"""
