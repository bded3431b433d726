"""The training agent: a REST API for the jobs of one machine.

Its jobs are processes of the supervisor and outlive the agent. It uses no database and no server: reports go over the
backend protocol (`schemas.training_protocol`) with each job's own token.
"""
