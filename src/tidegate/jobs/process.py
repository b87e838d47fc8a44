"""The process in which the worker runs: ``python -m tidegate.jobs.process DESCRIPTOR``, started by the gateway."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys

from tidegate.jobs.folder import Folder
from tidegate.jobs.messages import Hello, Reply, frame
from tidegate.jobs.worker import Worker, decoder
from tidegate.runtime import SystemClock
from tidegate.stores import StoreError, open_job_store
from tidegate.telemetry.log import Form
from tidegate.telemetry.opening import open_log


def main() -> None:
    """Run on the socket whose descriptor is the first argument."""
    for number in (signal.SIGINT, signal.SIGTERM):  # it ends with its gateway, and after it
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    clock = SystemClock()
    log_to = open_log(clock.utc_now, form=Form.JSON, level="warning")
    hello = _hello(connection)
    if hello is not None:
        try:
            folder = Folder(hello.setup.files)
            store = open_job_store(hello.setup.store)
        except (StoreError, OSError) as error:
            with contextlib.suppress(OSError):
                connection.sendall(frame(Reply(0, error="Unavailable", message=str(error))))
        else:
            try:
                Worker(connection, hello, store, folder).run()
            finally:
                store.close()
    log_to.close()


def _hello(connection: socket.socket) -> Hello | None:
    """Read the first frame and no byte more."""
    head = _exactly(connection, 4)
    body = _exactly(connection, int.from_bytes(head, "little")) if head else b""
    message = decoder.decode(body) if body else None
    return message if isinstance(message, Hello) else None


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            return b""
        data += more
    return data


if __name__ == "__main__":
    main()
