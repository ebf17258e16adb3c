"""What ends a command in one line instead of a traceback."""


class RefusedError(Exception):
    """A request that cannot be run, said in one line for the person who typed it."""


class NonFiniteLossError(Exception):
    """The loss became NaN or infinite; names the step, its rows and the last good checkpoint."""


class JobFailedError(RuntimeError):
    """A job that ran in a process of its own did not finish: its exit status, and why."""
