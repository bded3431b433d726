"""Commands on tasks and workflows, and how they are drawn in a terminal."""
