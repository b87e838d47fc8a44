"""TLS of the clients' port, of the control port, and towards backends with a private authority."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import urllib.request
from pathlib import Path

import pytest

from e2e.raw import Upstream, Visit, ask, chat, gateway, whole

pytestmark = [pytest.mark.slow, pytest.mark.anyio]


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for this machine, its own authority, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("the openssl command, which makes the test's certificate, is not installed")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


async def quick(visit: Visit) -> None:
    visit.answer(whole("secret"))


@pytest.mark.parametrize(("trust", "status"), [("ca: 'CERT'", 200), ("verify: false", 200), ("", 503)])
async def test_a_gateway_behind_a_gateway_by_https(certificate: tuple[Path, Path], trust: str, status: int) -> None:
    """The inner one serves https; the outer one has it as its backend, with and without a reason to trust it."""
    cert, key = certificate
    tls = f"{{cert: '{cert}', key: '{key}'}}"
    upstream = Upstream(quick)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(upstream.running())
        models = f"models: [{{name: raw, backends: [{{url: '{upstream.url}'}}]}}]\n"
        front = models + f"gateway: {{tls: {tls}}}\ncontrol: {{tls: {tls}}}\n"
        inner = await stack.enter_async_context(gateway(front))
        assert inner.url.startswith("https:")
        assert await asyncio.to_thread(live, inner.control, cert) == b"alive\n"
        row = f"{{name: b, url: '{inner.url}', tls: {{{trust.replace('CERT', str(cert))}}}}}"
        outer = await stack.enter_async_context(gateway(f"models: [{{name: raw, backends: [{row}]}}]"))
        answer = await ask(outer.url, chat())
        assert (answer.status, b"secret" in answer.body) == (status, status == 200)


def live(control: str, cert: Path) -> bytes:
    trusting = ssl.create_default_context(cafile=str(cert))
    with urllib.request.urlopen(control + "/livez", context=trusting, timeout=40) as response:
        body: bytes = response.read()
        return body


@pytest.mark.parametrize(
    ("row", "more", "message"),
    [
        ("", "gateway: {tls: {cert: none.pem, key: none.pem}}", "gateway.tls: expected a certificate and its key"),
        ("", "control: {tls: {cert: none.pem, key: none.pem}}", "control.tls: expected a certificate and its key"),
        (", tls: {ca: none.pem}", "", "models: expected PEM certificates"),
    ],
)
async def test_a_certificate_that_cannot_be_used_is_said_without_a_traceback(row: str, more: str, message: str) -> None:
    text = f"models: [{{name: raw, backends: [{{url: 'https://127.0.0.1:1'{row}}}]}}]\n{more}"
    with pytest.raises(RuntimeError, match=message) as caught:
        async with gateway(text):
            pass
    assert "Traceback" not in str(caught.value)
