"""Rows of keys, invitations, projects, usage and the audit log."""
