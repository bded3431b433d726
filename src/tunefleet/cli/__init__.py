"""The `tunefleet` command, one file a noun. `main` has the table of commands; each is imported when it runs.

It refuses to know SQL, HTTP and training: everything it shows comes through `client`, everything it starts is a child
process.
"""
