"""Services outside the fleet that merge an adapter into its base."""
