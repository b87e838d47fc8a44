"""What can go wrong with a store. Errors of database drivers are translated here and leak no further.

A call that raises has changed nothing, with one exception that no store can avoid: when the connection to a server
breaks while it commits (``Unavailable``), the change may be there. So every call can be repeated without harm.
"""

# ruff: noqa: N818 - the names are those of the style page: what happened, not that it is an error

from __future__ import annotations

from tidegate.core.errors import TidegateError


class StoreError(TidegateError):
    """A call to a store that did not happen."""


class Unavailable(StoreError):
    """The store cannot be reached, is busy for longer than we wait, or is damaged. The call may be repeated."""


class Full(Unavailable):
    """The disk, the quota or the store's size limit is used up. The call may be repeated when there is room."""


class Conflict(StoreError):
    """What the call assumes is not so (any more): a claim that was lost, a state that does not allow it."""


class NotFound(Conflict):
    """There is no such file, batch or row, or it belongs to another tenant."""
