"""Who merges an adapter into its base, where that is no task of the fleet."""
