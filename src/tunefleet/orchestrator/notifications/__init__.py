"""Tell people what happened: channels, the notifications that a transaction owes them, and their delivery.

What is to be said is written in the transaction that it tells of (`watch`), and sent after it (`courier`), at least
once and in order. Knows no routes.
"""
