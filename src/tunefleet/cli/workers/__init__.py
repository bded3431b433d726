"""Commands on the machines that run tasks: workers, agents, environments, invitations."""
