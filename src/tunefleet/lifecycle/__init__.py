"""Pure state machines: what status a thing may have, and which reason moves it where.

Knows no database, no clock and no network. The services call `task.move` and store what it returns.

    pending ──▶ queued ──▶ dispatched ──▶ running ──▶ completed
       │          ▲  ▲          │          │  │ │  ╰─▶ failed
       ▼          │  ╰──────────╯          │  │ ╰────▶ cancelled
    skipped       │   (not accepted)       │  ╰──▶ paused ──╮
                  ╰────────────────────────╯ (retry)        │
                  ╰─────────────────────────────────────────╯ (resume)

Every status that is not final may also become cancelled, and failed by an upstream failure.
"""
