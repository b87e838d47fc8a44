"""Build the package; with ``TIDEGATE_COMPILE=1`` in the environment, the path of a request as machine code besides.

mypyc compiles the same files that Python would run, so both builds do the same, and the tests run on both
(``make test-compiled``). What stays Python stands below with its reason; everything else about the package stands in
``pyproject.toml``.
"""

import os
import sys
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path("src/tidegate")
COMPILED = {
    "core": ["*"],
    "classify": ["*"],
    "splice": ["waste"],
    "telemetry": ["accounts", "arrivals", "heavy", "log", "recorder", "usage"],
    "backends": [
        "connection", "framing", "ground", "health", "names", "prober", "rate_limits", "response", "upstream", "wire",
    ],
    "runtime": ["driver", "questions", "rounds"],
    "gateway": [
        "affinity", "answering", "app", "application", "asked", "asking", "beginning", "body", "call", "completions",
        "crowd", "cycle", "eager", "exchange", "flow", "head", "limits", "link", "outgoing", "pools", "protocol",
        "refusing", "relay", "requests", "resuming", "returning", "target", "tries", "waits", "watch",
    ],
}  # fmt: skip
"""By room, the modules that a request runs through."""
INTERPRETED = {"__init__", "compiling", "fields", "policy", "signals", "snapshots"}  # msgspec reads annotations there
MYPY = "mypy>=2.4"
LENIENT = ["--ignore-missing-imports", "--no-warn-unused-ignores", "--no-warn-return-any", "--allow-subclassing-any"]
"""Types of libraries whose stubs are not there are not known where a user builds; `make check` asks for all."""

wanted = os.environ.get("TIDEGATE_COMPILE") == "1"
modules = []
if wanted and not {"bdist_wheel", "build_ext"}.isdisjoint(sys.argv):  # pip asks other things of this file before
    from mypyc.build import mypycify

    files = sorted(
        str(path)
        for room, names in COMPILED.items()
        for name in names
        for path in (ROOT / room).glob(f"{name}.py")
        if path.stem not in INTERPRETED
    )
    modules = mypycify(
        [*LENIENT, *files], opt_level=os.environ.get("TIDEGATE_OPT", "3"), debug_level="0", separate=True
    )


def known() -> list[str]:
    """Give the libraries whose types mypyc has to know: those that are needed to run."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    return list(project["dependencies"])


setup(
    ext_modules=modules,
    setup_requires=[MYPY, *known()] if wanted else [],
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
)
