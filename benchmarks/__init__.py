"""Figures of docs/performance.md: each module with a ``run()`` gives rows of (name, figure, goal)."""
