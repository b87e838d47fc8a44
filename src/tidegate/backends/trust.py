"""Whom to trust on a TLS connection to an upstream (SPEC §10)."""

from __future__ import annotations

import ssl


def tls_context(*, ca: str | None, verify: bool) -> ssl.SSLContext:
    """Make the context for connections to one upstream; HTTP/1.1 is the only protocol offered.

    Args:
        ca: file of PEM certificates that are trusted instead of the system's.
        verify: false accepts any certificate for any name.

    Raises:
        ValueError: the file cannot be read, or holds no certificate.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:  # ssl.SSLError is one
        raise ValueError(f"expected PEM certificates in {ca!r} (tls.ca), got: {error}") from error
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context
