"""Requests to addresses that somebody else chose: checked, limited, interruptible."""
