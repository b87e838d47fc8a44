"""Run ``python -m tidegate`` as the ``tidegate`` command."""

from tidegate.cli import main

main()
