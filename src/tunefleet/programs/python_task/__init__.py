"""A function of a document, run in a process of its own: the program of the task kind `python`.

program   the job from beginning to end     runner   the process of the function; the standard library alone
packages  what it asks pip for, kept        found    what it returned and left, checked
"""

from tunefleet.programs.python_task.program import main

__all__ = ["main"]
