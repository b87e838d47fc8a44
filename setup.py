"""Build the package; with ``TIDEGATE_COMPILE=1`` in the environment, the scheduler's decisions as machine code besides.

mypyc compiles the same files that Python would run, so both builds decide alike, and the tests of the core run on both
(``make test-compiled``). The values that others read by their annotations stay Python. Everything else about the
package stands in ``pyproject.toml``.
"""

import os
import sys
from pathlib import Path

from setuptools import setup

CORE = Path("src/tidegate/core")
INTERPRETED = {"__init__.py", "model.py", "policy.py", "signals.py"}  # msgspec reads these from event logs
MYPY = "mypy>=1.18"

wanted = os.environ.get("TIDEGATE_COMPILE") == "1"
modules = []
if wanted and not {"bdist_wheel", "build_ext"}.isdisjoint(sys.argv):  # pip asks other things of this file before
    from mypyc.build import mypycify

    files = sorted(str(path) for path in CORE.glob("*.py") if path.name not in INTERPRETED)
    modules = mypycify(files, opt_level="3", debug_level="0", group_name="tidegate_core")
setup(ext_modules=modules, setup_requires=[MYPY] if wanted else [])
