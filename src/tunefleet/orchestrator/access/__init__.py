"""Access control and accounting: API keys, permissions, projects, quotas and the audit log."""
