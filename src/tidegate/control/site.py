"""The dashboard's own files, served from memory under a policy that lets a page load nothing from elsewhere.

The files hold no data and need no token. They are read once at the start, so a request can name no path of the disk.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
}


def site_routes() -> list[Route]:
    """Return a route for each file; ``index.html`` is ``/``."""
    return [_route(f"/{path}", content) for path, content in _files(files("tidegate.control") / "pages", "")]


def _files(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found = []
    for item in sorted(folder.iterdir(), key=lambda each: each.name):
        if item.is_dir():
            found += _files(item, f"{prefix}{item.name}/")
        elif any(item.name.endswith(ending) for ending in CONTENT_TYPES):
            found.append((f"{prefix}{item.name}", item.read_bytes()))
    return found


def _route(path: str, content: bytes) -> Route:
    kind = next(kind for ending, kind in CONTENT_TYPES.items() if path.endswith(ending))
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {**HEADERS, "etag": tag}

    async def serve(request: Request) -> Response:
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=None, headers={**headers, "content-type": kind})

    return Route("/" if path == "/index.html" else path, serve, methods=["GET"])
