"""What a training writes down."""
