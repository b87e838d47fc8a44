"""The two ports: what clients and operators may do there, and within which limits."""

from __future__ import annotations

from pydantic import Field

from tidegate.config.fields import (
    Digest,
    File,
    Listen,
    Name,
    PositiveSeconds,
    PositiveWhole,
    Role,
    RoleName,
    Seconds,
    Section,
    Size,
    StoreUrl,
    Text,
)
from tidegate.config.values import Address


class TlsSettings(Section):
    """Certificate of a port, for clients that come by https."""

    cert: File = Field(description="Certificate with its chain, PEM.")
    key: File = Field(description="Its private key, PEM, without a password.")


class GatewaySettings(Section):
    """The port that clients speak to."""

    listen: Listen = Field(default=Address("127.0.0.1", 8400), description="Address of the OpenAI-compatible service.")
    max_body: Size = Field(default=32 * 1024**2, description="Largest request body; a larger one is a 413.")
    max_connections: PositiveWhole = Field(default=20_000, description="Most client connections at a time.")
    max_connections_per_tenant: PositiveWhole | None = Field(
        default=None, description="Most requests that one tenant has open at a time; above it, 429. Absent: no limit."
    )
    max_headers: Size = Field(default=64 * 1024, description="Most bytes of request line and headers.")
    header_timeout: PositiveSeconds = Field(default=10.0, description="Longest time that sending them may take.")
    body_timeout: PositiveSeconds = Field(default=30.0, description="Longest gap between two pieces of a request body.")
    drain_timeout: Seconds = Field(default=120.0, description="On SIGTERM, how long running streams may still take.")
    write_stall_timeout: PositiveSeconds = Field(
        default=30.0,
        description="A client that reads nothing for so long is cancelled, so that it does not hold a seat.",
    )
    silence_timeout: PositiveSeconds = Field(
        default=60.0,
        description="Silence of a running answer after which its backend is asked whether it is there; if not, the "
        "answer ends.",
    )
    queue_heartbeat_after: PositiveSeconds | None = Field(
        default=None,
        description="A streaming request that waits longer gets comment lines, which commits a 200. Absent: never.",
    )
    tls: TlsSettings | None = Field(default=None, description="Serve https. Absent: plain http.")
    fallback_finish_reason: Text = Field(
        default="load_shedding_fallback",
        description="`finish_reason` of a fallback answer; use `stop` for clients that accept only OpenAI's values.",
    )


class OperatorSettings(Section):
    """Who may use the control port: a name for the audit list, a role and the digest of a token."""

    name: Name = Field(description="Unique; stands in the audit list.")
    role: RoleName = Field(default=Role.VIEWER, description="`viewer` may look, `operator` may change.")
    token: Digest = Field(
        description="SHA-256 digest of the bearer token; `tidegate keygen` prints a token with its digest.", repr=False
    )


class ControlSettings(Section):
    """The port for metrics, health and the control API."""

    listen: Listen = Field(
        default=Address("127.0.0.1", 8401),
        description="Address of the control port; anything but a loopback address needs `operators`.",
    )
    operators: tuple[OperatorSettings, ...] = Field(
        default=(),
        description="Who may use the control API. Absent: every program on this machine, and nobody else.",
    )
    tls: TlsSettings | None = Field(default=None, description="Serve https. Absent: plain http.")
    store: StoreUrl | None = Field(
        default=None,
        repr=False,
        description="Where the audit list, the tenants made by the control API and the usage of all tenants are kept: "
        "`sqlite:///PATH` or `postgresql://…`, also that of `jobs.store`. Absent: in memory, until the gateway ends.",
    )
    audit_file: File | None = Field(
        default=None, description="File to which every change is appended as well, one JSON line each."
    )
