"""What tells mypyc how to lay a class out. To Python, and to who runs it, it is nothing.

``mypyc_attr`` is known to mypyc by its name in ``mypy_extensions``, which comes with mypy and is not needed to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    _Class = TypeVar("_Class")

    def mypyc_attr(*_names: str, **_values: object):
        """Return the class as it is."""

        def unchanged(named: _Class) -> _Class:
            return named

        return unchanged
