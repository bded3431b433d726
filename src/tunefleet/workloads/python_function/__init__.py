"""A function of a workflow file, run in its own process: the program of the task type `python`.

run           the program
runner        the process of the function; standard library only
pip_packages  its pip requirements, cached
discovery     its result and files, checked
"""

from tunefleet.workloads.python_function.run import main

__all__ = ["main"]
