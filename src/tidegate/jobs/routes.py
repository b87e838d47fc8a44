"""``/v1/files`` and ``/v1/batches`` as OpenAI's clients know them. Whoever mounts the app has found the tenant.

Everything that touches the store is asked of the worker. A tenant sees its own and nothing else: for another's id the
answer is the same as for one that never was.
"""

from __future__ import annotations

from starlette.applications import Starlette

from tidegate.jobs.answers import no_route, wrong_method
from tidegate.jobs.batch_routes import BatchRoutes
from tidegate.jobs.file_routes import FileRoutes


def build_app(files: FileRoutes, batches: BatchRoutes) -> Starlette:
    """Make the app, to be mounted behind something that puts ``tenant`` into the request's state."""
    app = Starlette(routes=[*files.routes, *batches.routes], exception_handlers={404: no_route, 405: wrong_method})
    app.router.redirect_slashes = False  # a redirect would name the host and scheme that a proxy in front has hidden
    return app
