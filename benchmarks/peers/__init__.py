"""Tidegate beside other gateways in one run: installed from the registries, a core each, CPU time as the main figure.

``make bench-peers`` or ``python -m benchmarks.peers [NAME …]``. What cannot be installed is named, not left out.
"""
