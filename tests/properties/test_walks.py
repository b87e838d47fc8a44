"""Long random walks, and the same decisions under any hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from properties.walks import Walk


@pytest.mark.parametrize("seed", range(25))
def test_a_long_walk_keeps_every_promise(seed: int) -> None:
    Walk(seed).go(500)


@pytest.mark.slow
def test_decisions_do_not_depend_on_the_hash_seed() -> None:
    folder = Path(__file__).parent.parent
    digests = {
        subprocess.run(
            [sys.executable, "-m", "properties.walks"],
            env={**os.environ, "PYTHONPATH": str(folder), "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(digests) == 1
