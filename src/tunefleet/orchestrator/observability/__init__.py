"""What a server says of itself: figures for Prometheus, and the spans of tasks.

Counts what passes by (commits, requests, exchanges), and looks at the store only through indexes and only when somebody
asks. Decides nothing; a server that is not asked and sends nothing works the same without it.
"""
