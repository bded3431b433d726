"""A function of a document, run in a process of its own: the program of the task kind `python`.

run           the job from beginning to end
runner        the process of the function; the standard library alone
pip_packages  what it asks pip for, kept
discovery     what it returned and left, checked
"""

from tunefleet.workloads.python_function.run import main

__all__ = ["main"]
