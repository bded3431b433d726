"""Requests to addresses that users choose: checked, limited, cancellable."""
