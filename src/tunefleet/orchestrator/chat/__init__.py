"""Chats with a model that a task holds ready: their sessions, and the turns between people and workers."""
