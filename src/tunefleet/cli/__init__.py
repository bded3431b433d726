"""The `tunefleet` command, one file per noun. `main` has the table of commands; each is imported when it runs.

No SQL, HTTP or training code here: all data comes through `client`, and everything it starts is a child process.
"""
