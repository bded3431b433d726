"""Notifications to users: channels, subscriptions, messages and their delivery.

A notification is stored in the transaction of its event (`triggers`) and sent afterwards (`delivery`), at least once,
and in order.
"""
