"""One error for all that the kernel refuses."""

from __future__ import annotations

import errno
import os


class ResctrlError(OSError):
    """What the kernel would answer: `errno` is the answer, last_cmd_status holds the words."""

    def __init__(self, code: int) -> None:
        super().__init__(code, os.strerror(code))

    @property
    def symbol(self) -> str:
        """Name of the error, such as EINVAL."""
        return errno.errorcode[self.errno or 0]
