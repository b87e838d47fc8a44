"""What the control store holds: changes, tenants made while the gateway ran, and what each tenant used."""

from __future__ import annotations

from typing import Any, Final

import msgspec

HOUR_S: Final = 3600
"""Usage is kept by the hour, so that any day of any time zone can be added up."""


class NewChange(msgspec.Struct, frozen=True):
    """A change to be recorded.

    Attributes:
        at_utc: when, seconds of the Unix epoch.
        who: the operator's name, or ``local``, ``timer``, ``signal``, ``start``.
        action: what kind of change.
        changes: what differs: ``what``, ``from``, ``to`` each; never a secret.
        undoes: the change that this one takes back.
    """

    at_utc: float
    who: str
    action: str
    changes: list[dict[str, Any]]
    undoes: int | None = None


class StoredChange(msgspec.Struct, frozen=True):
    """A recorded change. ``undone_by`` is the one that took it back."""

    id: int
    at_utc: float
    who: str
    action: str
    changes: list[dict[str, Any]]
    undoes: int | None = None
    undone_by: int | None = None


class StoredKey(msgspec.Struct, frozen=True):
    """A key of a tenant. Only its digest is stored.

    Attributes:
        digest: ``sha256:`` and 64 hexadecimal digits.
        created_at_utc: seconds of the Unix epoch.
        expires_at_utc: after this it is nobody's; ``None``: it stays.
    """

    digest: str
    created_at_utc: float
    expires_at_utc: float | None = None


class StoredTenant(msgspec.Struct, frozen=True):
    """A tenant that is not in the settings file.

    Attributes:
        name: unique.
        settings: those of ``tenants[]`` in the file's form, without ``name`` and ``keys``.
        keys: oldest first; there may be none.
        revision: counts its changes; whoever changes it says which one he saw.
    """

    name: str
    settings: dict[str, Any]
    keys: tuple[StoredKey, ...] = ()
    revision: int = 0


class Usage(msgspec.Struct):
    """What a tenant did: its requests by outcome, its tokens, its waits. All are counts but the two in seconds.

    Attributes:
        dispatched: requests that got a seat, each time that they got one; ``wait_s`` is their waits added up.
        longest_wait_s: the longest of these waits.
        refusals: requests without an answer from a model, by reason.
    """

    completed: int = 0
    failed: int = 0
    rejected: int = 0
    evicted: int = 0
    cancelled: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    dispatched: int = 0
    wait_s: float = 0.0
    longest_wait_s: float = 0.0
    refusals: dict[str, int] = {}


class UsageRow(msgspec.Struct, frozen=True):
    """The usage of one tenant in one period, whose first second ``start_utc`` is."""

    start_utc: int
    tenant: str
    usage: Usage
