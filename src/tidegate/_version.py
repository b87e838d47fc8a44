"""The version of the package, read by the build and by ``tidegate --version``."""

__version__ = "0.1.0"
