"""Rows of keys, invitations, projects, and of what was used and asked."""
