"""Tidegate: an LLM traffic scheduler (an OpenAI-compatible gateway in front of inference engines)."""

from tidegate._version import __version__

__all__ = ["__version__"]
