"""The loop of a machine that runs tasks: exchange with the server, run, deliver.

State is written to disk before it is reported, so the process may be killed at any moment: the next one reads the same
folders, adopts running jobs and delivers finished ones. The package does not know how training works (an executor names
the program, a supervisor owns the process) or how messages are transported (`tunefleet.transport`).

    offered ──accept──▶ accepted ──ack──▶ preparing ──launch──▶ running ──end──▶ delivering ──finish──▶ forgotten
        ╰──────────────────────── drop: end the job, deliver nothing, forget ──────────────────────────▶
"""
