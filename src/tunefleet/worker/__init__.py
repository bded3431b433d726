"""The loop of a machine that runs tasks: exchange with the server, run, deliver.

What it holds is on disk before it is said, so the process may be killed at any moment: the next one reads the same
folders, adopts what still runs and delivers what has ended. Refuses to know how a training works (an executor names
the program, a supervisor owns the process) and how messages travel (a link carries them).

    offered ──accept──▶ accepted ──ack──▶ preparing ──launch──▶ running ──end──▶ delivering ──finish──▶ forgotten
        ╰──────────────────────── drop: end the job, deliver nothing, forget ──────────────────────────▶
"""
