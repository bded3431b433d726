"""The training agent: the REST front door of the supervisor of one machine.

Its jobs are the supervisor's processes and outlive it. It knows no store and no server: what it reports goes over
the backend protocol (`schemas.training`) with each job's own token.
"""
