"""The block ``jobs``: where batch jobs are kept and how far they may go."""

from __future__ import annotations

from pydantic import Field

from tidegate.config.fields import File, PositiveSeconds, PositiveWhole, Section, Size, StoreUrl


class JobsSettings(Section):
    """Batch jobs, `/v1/files` and `/v1/batches`. Absent: those paths answer 404."""

    store: StoreUrl = Field(
        default="sqlite:///tidegate.db",
        repr=False,
        description="Where files, batches and rows are listed: `sqlite:///PATH` (two slashes and an absolute path make "
        "four), or `postgresql://…` for several gateways, with the extra `postgres`.",
    )
    files: File = Field(
        default="./tidegate-files", description="Folder of the files' bytes; gateways that share a store share it too."
    )
    max_attempts: PositiveWhole = Field(
        default=5, description="Failures of a row after which it is a dead letter. Being too busy is no failure."
    )
    max_lines: PositiveWhole = Field(default=50_000, description="Most lines of an input file; millions are fine.")
    max_file: Size = Field(default=200 * 1024**2, description="Largest input file.")
    keep: PositiveSeconds = Field(
        default=30 * 86_400.0, description="How long files, and batches after their end, are kept."
    )
