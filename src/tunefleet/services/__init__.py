"""The verbs of the server: submit, place, exchange, finish, publish, read.

A verb checks who asks, decides with the pure modules (`lifecycle`, `placement`, `spec`) and stores the outcome in one
operation. It knows rows and messages, neither HTTP nor processes; what it refuses, it says with a `TunefleetError`.
"""
