"""Pure state machines: statuses, and the transitions between them.

Uses no database, no clock and no network. The orchestrator calls `task.move` and stores the result.

    pending ──▶ queued ──▶ dispatched ──▶ running ──▶ completed
       │          ▲  ▲          │          │  │ │  ╰─▶ failed
       ▼          │  ╰──────────╯          │  │ ╰────▶ cancelled
    skipped       │   (not accepted)       │  ╰──▶ paused ──╮
                  ╰────────────────────────╯ (retry)        │
                  ╰─────────────────────────────────────────╯ (resume)

Every status that is not final may also become cancelled, or failed because of an upstream failure.
"""
