"""Commands on tasks and workflows, and their terminal views."""
