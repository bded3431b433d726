"""What crosses a process: HTTP bodies, link messages, control commands, journal records, the job folder's files.

Only shapes and names live here; nothing opens a file or a socket. Both sides import it, and neither imports the other.
"""
