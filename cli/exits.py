"""Exit codes of the command, and which error leads to which. The table for people is in docs/cli.md."""

from __future__ import annotations

from typing import Final

from slacktide.errors import ManifestError, QuantityError, SettingsError, SlacktideError, StateError

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
"""Wrong options, bad input, settings or a state directory that cannot be used."""
NOT_RUNNING: Final = 3
REFUSED: Final = 3
"""`drill run`: no drill began, for a reason that was said."""
TIMED_OUT: Final = 4
RUN_FAILED: Final = 125
"""`run`: the pod did not run to an end of its own; what it printed is no result."""
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
SIGNAL: Final = 128
"""128 + n: ended by signal n."""
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141


class CommandError(SlacktideError):
    """Something the command itself has to say; `code` is its exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        self.code = code
        super().__init__(message)


def not_running(root: str) -> CommandError:
    """Nothing is up on this state directory."""
    return CommandError(f"Slacktide is not running (state directory {root}): start it with `slacktide up`", NOT_RUNNING)


def words_of(error: SlacktideError) -> str:
    """What is said of an error that nobody handled; of a missing right, which rule would give it."""
    if isinstance(error, CommandError | SettingsError | QuantityError | ManifestError | StateError):
        return str(error)
    from slacktide.cluster.errors import Forbidden

    if not isinstance(error, Forbidden):
        return str(error)
    from cli.asking import said

    return said(error)


def code_of(error: SlacktideError) -> int:
    """Exit code for an error that nobody handled."""
    if isinstance(error, CommandError):
        return error.code
    if isinstance(error, SettingsError | QuantityError | ManifestError | StateError):
        return USAGE
    # Imported here: an error of the API client can only come from a command that loaded it.
    from slacktide.cluster.errors import BadRequest, CredentialsError, Invalid, Unreachable

    if isinstance(error, Unreachable):
        return NOT_RUNNING
    return USAGE if isinstance(error, BadRequest | CredentialsError | Invalid) else FAILED
