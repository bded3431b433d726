"""Chats with a model that a task serves: sessions, and turns between users and workers."""
