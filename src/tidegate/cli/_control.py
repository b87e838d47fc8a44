"""Ask the control port of a running gateway: no proxy, no redirect, and errors in words."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from tidegate.cli._asking import error_message, opener, why
from tidegate.cli._output import FAILED, INVALID
from tidegate.config import ExpectedError, parse_root_url

URL = "http://127.0.0.1:8401"
TOKEN_ENV = "TIDEGATE_TOKEN"  # noqa: S105 - the name of a variable
TIMEOUT_S = 10.0


class UnansweredError(Exception):
    """The gateway did not answer, or did not let us; ``status`` is the exit status that goes with it."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status


class ControlPort:
    """A control port.

    Args:
        url: where it is.
        token_env: name of the environment variable with the operator's token.

    Raises:
        UnansweredError: this is no URL.
    """

    def __init__(self, url: str, token_env: str) -> None:
        try:
            self._root = parse_root_url(url)
        except ExpectedError as error:
            raise UnansweredError(f"--url: {error}", INVALID) from None
        self._token = os.environ.get(token_env)
        self._opener = opener()

    @contextmanager
    def open(self, path: str, body: dict[str, Any] | None = None) -> Iterator[HTTPResponse]:
        """Ask, and give the answer to be read.

        Raises:
            UnansweredError: in the block too.
        """
        headers = {"content-type": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._root + path, data, headers)  # noqa: S310 - parse_root_url: http or https
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                yield response
        except urllib.error.HTTPError as error:
            raise UnansweredError(error_message(error), INVALID if error.code == 400 else FAILED) from None
        except (OSError, HTTPException, ValueError) as error:
            raise UnansweredError(f"no answer from {urlsplit(self._root).netloc}: {why(error)}") from None

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask and return the JSON answer.

        Raises:
            UnansweredError: there is none.
        """
        with self.open(path, body) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
