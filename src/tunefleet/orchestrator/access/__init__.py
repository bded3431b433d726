"""Who may do what: keys, projects and their quotas, the audit log, what was used."""
