"""The certificate of a port of ours."""

from __future__ import annotations

import ssl

from tidegate.config import ConfigError, Problem, TlsSettings


def certificate(tls: TlsSettings | None, setting: str) -> ssl.SSLContext | None:
    """Return what a port of ours shows to clients, ``None`` without TLS.

    Args:
        tls: its settings.
        setting: where they stand in the file.

    Raises:
        ConfigError: the files cannot be used.
    """
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(tls.cert, tls.key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        expected = f"expected a certificate and its key in PEM, {tls.cert} and {tls.key}: {error}"
        raise ConfigError([Problem(setting, expected)]) from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password")
