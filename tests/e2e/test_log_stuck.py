"""A gateway whose log cannot be written: it answers all the same, and ends when it is told to."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.raw import Upstream, Visit, ask, chat, until, whole
from tidegate.testing.gateway_process import GatewayProcess

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(60)]  # 1 s on a machine at rest


async def serve(visit: Visit) -> None:
    visit.answer(whole())


@pytest.mark.parametrize("stderr", ["full disk", "pipe that nobody reads", "pipe whose reader is gone"])
async def test_requests_are_answered(stderr: str) -> None:
    reader, writer = os.pipe()
    if stderr == "full disk":
        os.dup2(full := os.open("/dev/full", os.O_WRONLY), writer)
        os.close(full)
    elif stderr == "pipe whose reader is gone":
        os.close(reader)
    async with Upstream(serve).running() as engine:
        command = [sys.executable, "-m", "tidegate", "serve", "--backend", engine.url]
        command += ["--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writer, text=True)  # noqa: ASYNC220
        try:
            gateway = await asyncio.to_thread(GatewayProcess, process, Path(os.devnull))
            for _ in range(30):
                answers = await asyncio.gather(*(ask(gateway.url, chat(user="u" * 50)) for _ in range(20)))
                assert {answer.status for answer in answers} == {200}
            await until(lambda: gateway.total("tidegate_requests_total", outcome="completed") == 600, within_s=5)
            process.terminate()
            assert await asyncio.to_thread(process.wait, 20) == 0
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
            os.close(writer)
            if stderr != "pipe whose reader is gone":
                os.close(reader)
