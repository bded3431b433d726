"""Access control and accounting: API keys, permissions, projects, quotas, audit log and usage."""
