"""The control port."""

from tidegate.control.app import build_control_app

__all__ = ["build_control_app"]
