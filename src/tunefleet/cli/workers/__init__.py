"""Commands on workers, agents, environments and invitations."""
