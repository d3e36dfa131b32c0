"""The one exception that a user can cause."""


class UserError(Exception):
    """Bad input: its message is one line that names the file, key or value and the remedy.

    The command line prints the message on standard error and exits with status 2.
    """
