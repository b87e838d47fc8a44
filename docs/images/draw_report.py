"""Draw a plot of a shipped scenario's report: ``python3 docs/images/draw_report.py > docs/images/flash-sale.svg``.

Needs ``pip install 'tidegate[report]'``. The same version draws the same picture.
"""

from __future__ import annotations

import sys

from tidegate.cli.report._charts import distributions
from tidegate.cli.scenario import GatewayEstimator, load_scenario
from tidegate.simulation.run import run_scenario


def main() -> None:
    """Write the plot of the times to the first token."""
    scenario = load_scenario("flash-sale")
    result = run_scenario(scenario, estimator=GatewayEstimator, baselines=["fifo", "bare_aging"])
    svg = distributions(result.runs, "ttft")
    style = "--grid:#c9ced6;color:#39424e;background:#ffffff;font-family:sans-serif"
    sys.stdout.write(svg.replace("<svg ", f'<svg style="{style}" ', 1) + "\n")


if __name__ == "__main__":
    main()
