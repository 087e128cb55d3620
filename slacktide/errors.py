"""Errors that cross module borders. A person reads each: it says what is wrong, where, and what to do.

SlacktideError
    SettingsError      a settings file, variable or flag cannot be used
    QuantityError      text that is no Kubernetes quantity
    ManifestError      an object that the API would refuse
    StateError         a state directory that cannot be used (newer version, locked, no space)
    KernelError        a kernel file said no
        Gone           the cgroup, process or device went away: skip it, count it
        Unsupported    this kernel or this mount has no such file or function
        Refused        the value was understood and refused (EINVAL, EBUSY, ERANGE, ...)
        NotPermitted   we lack the right (EACCES, EPERM, EROFS)
                       anything else, such as a lack of descriptors, is a KernelError itself

Errors of the Kubernetes API are in `slacktide.cluster.errors`.
"""

from __future__ import annotations


class SlacktideError(Exception):
    """Base of all errors that Slacktide raises on purpose."""


class SettingsError(SlacktideError):
    """Settings that cannot be used; `problems` has one sentence each, so that all are seen at once."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class QuantityError(SlacktideError, ValueError):
    """Text that is no Kubernetes quantity, or one that does not fit where it stands."""


class ManifestError(SlacktideError, ValueError):
    """An object that the API would refuse."""


class StateError(SlacktideError):
    """A state directory that cannot be used as it is."""


class KernelError(SlacktideError):
    """A kernel file said no."""

    def __init__(self, path: str, errno_: int | None, detail: str) -> None:
        self.path = path
        self.errno = errno_
        self.detail = detail
        super().__init__(f"{path}: {detail}")


class Gone(KernelError):
    """What the file described went away."""


class Unsupported(KernelError):
    """This kernel or mount has no such file or function."""


class Refused(KernelError):
    """The kernel understood the value and refused it."""


class NotPermitted(KernelError):
    """We lack the right to do this."""
