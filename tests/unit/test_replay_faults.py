"""What a rehearsal says of requests that failed otherwise than by policy."""

from __future__ import annotations

import pytest

from tidegate.cli.replay._command import _told


@pytest.mark.parametrize(
    ("reason", "option"), [("http_404", "--model"), ("unknown_model", "--model"), ("unauthorized", "--key")]
)
def test_what_the_set_up_lacks_is_named(reason: str, option: str) -> None:
    text = _told({reason: 1200, "connection_lost": 5})
    assert "not refused by policy: 1,205" in text
    assert option in text


def test_other_faults_name_no_option() -> None:
    assert "--" not in _told({"connection_lost": 1})
