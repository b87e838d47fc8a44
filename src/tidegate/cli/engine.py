"""``tidegate engine``: serve the simulated engine."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli._output import INVALID
from tidegate.simserver import EngineOptions, Fault, FaultKind, RetryForm, serve_engine
from tidegate.simulation import PROFILES, WaitingOrder


def engine(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address; port 0 takes a free one.")
    ] = "127.0.0.1:8000",
    model: Annotated[str, typer.Option("--model", help="Model name that it answers to.")] = "sim",
    profile: Annotated[str, typer.Option("--profile", help=f"Cost of a step: {', '.join(PROFILES)}.")] = "h100-8b",
    speed: Annotated[float, typer.Option("--speed", help="How many times faster than the profile.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Of texts, step noise and faults.")] = 0,
    kv_tokens: Annotated[
        int | None, typer.Option("--kv-tokens", min=16, help="KV pool in tokens, if not the profile's.")
    ] = None,
    max_sequences: Annotated[
        int | None, typer.Option("--max-sequences", min=1, help="Most running sequences, if not the profile's.")
    ] = None,
    token_budget: Annotated[int, typer.Option("--token-budget", min=1, help="Most tokens computed in a step.")] = 2048,
    order: Annotated[
        WaitingOrder, typer.Option("--order", help="Order of the engine's own waiting list.")
    ] = WaitingOrder.FCFS,
    noise: Annotated[float, typer.Option("--noise", help="Standard deviation of a step's time, as a part.")] = 0.08,
    mean_output_tokens: Annotated[
        float, typer.Option("--mean-output-tokens", help="Mean answer where the request does not say.")
    ] = 200.0,
    max_model_len: Annotated[int, typer.Option("--max-model-len", help="Longest prompt plus answer.")] = 32_768,
    fault: Annotated[FaultKind, typer.Option("--fault", help="What goes wrong.")] = FaultKind.NONE,
    fault_share: Annotated[float, typer.Option("--fault-share", min=0, max=1, help="Part of requests it strikes.")] = 1,
    fault_times: Annotated[
        int | None, typer.Option("--fault-times", min=0, help="Strike that many, then none.")
    ] = None,
    fault_after_tokens: Annotated[
        int, typer.Option("--fault-after-tokens", min=0, help="Tokens before stream_error, cut or hang.")
    ] = 0,
    fault_factor: Annotated[float, typer.Option("--fault-factor", help="How much longer steps take under slow.")] = 10,
    retry_after: Annotated[float, typer.Option("--retry-after", min=0, help="Seconds that a 429 asks for.")] = 1,
    retry_form: Annotated[RetryForm, typer.Option("--retry-form", help="How a 429 says so.")] = RetryForm.SECONDS,
) -> None:
    """Serve a simulated engine: OpenAI-compatible, vLLM's metric names, texts that mean nothing.

    Step times follow a published cost model, so that overload, full KV and preemption look as on a real engine.
    POST /sim/fault changes the fault while it runs; GET /sim/stats says how far the clock fell behind the model.
    """
    try:
        host, port = _address(listen)
        options = EngineOptions(
            host=host,
            port=port,
            model=model,
            profile=profile,
            speed=speed,
            seed=seed,
            kv_tokens=kv_tokens,
            max_sequences=max_sequences,
            token_budget=token_budget,
            order=order,
            noise=noise,
            mean_output_tokens=mean_output_tokens,
            max_model_len=max_model_len,
            fault=Fault(
                kind=fault,
                share=fault_share,
                times=fault_times,
                after_tokens=fault_after_tokens,
                factor=fault_factor,
                retry_after_s=retry_after,
                retry_form=retry_form,
            ),
        )
        serve_engine(options, announce=_announce)
    except ValueError as error:
        typer.echo(f"tidegate engine: {error}", err=True)
        raise typer.Exit(INVALID) from None


def _announce(url: str) -> None:
    typer.echo(f"listening on {url}")  # echo flushes: whoever started this process waits for the line


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"--listen: expected HOST:PORT, got {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)
