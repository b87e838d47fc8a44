"""The scheduler class itself: everything that is bound to a version of vLLM, and nothing that decides.

vLLM does not promise that this interface stays. ``SUPPORTED`` names the versions that this was written for and is
tested with; any other is refused at the start, and so is one that lacks a part which is used here.

What is used of vLLM, and why it holds in 0.32: requests are admitted from a heap ordered by (``priority``, arrival) and
the scan stops at the first that does not fit; a running request that finds no block preempts the running one with the
largest (``priority``, arrival); ``watermark_blocks`` is what must stay free when a waiting request is admitted beside
running ones; ``_preempt_request`` may be called before a step (vLLM does so itself when it resets its prefix cache, and
like there a stopped one is taken out of ``prev_step_scheduled_req_ids``: one that is admitted again in the same step is
then sent to the worker with all of its tokens); a running request is left out of the steps before its
``next_decode_eligible_step``.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import vllm
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import PriorityRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from tidegate.vllm_plugin.decide import (
    Allowance,
    Member,
    Patience,
    Runner,
    Share,
    Waiter,
    band_of,
    headroom,
    hold_back,
    make_room,
    place,
)
from tidegate.vllm_plugin.rules import RulesError
from tidegate.vllm_plugin.settings import ANY_VERSION, KEY, read_rules
from tidegate.vllm_plugin.versions import refusal

USED: tuple[tuple[Callable[..., object], frozenset[str]], ...] = (
    (KVCacheManager.allocate_slots, frozenset({"request", "has_scheduled_reqs", "full_sequence_must_fit"})),
    (KVCacheManager.get_computed_blocks, frozenset({"request"})),
    (KVCacheManager.get_blocks, frozenset({"request_id"})),
    (Scheduler._preempt_request, frozenset({"request", "timestamp", "drop_stale_output"})),
    (Scheduler._request_blocks_can_be_freed, frozenset({"request"})),
    (Scheduler.add_request, frozenset({"request"})),
    (PriorityRequestQueue.remove_request, frozenset({"request"})),
)
"""What is called or replaced here, with parameters that must be there."""

_LOOKED_AT = 16
"""Waiting requests for which room is made in one step; a step takes some ten milliseconds."""

_PATIENCE_S = 0.25
"""Time between two looks at who has waited too long."""

_WAITING = (RequestStatus.WAITING, RequestStatus.PREEMPTED)

_log = init_logger("vllm.tidegate")


class TidegateScheduler(AsyncScheduler):
    """vLLM's own scheduler with the bands of a gateway in it.

    Raises:
        RulesError: something under ``tidegate`` in ``--additional-config`` is wrong.
        RuntimeError: this vLLM is none that is supported, or does not run with ``--scheduling-policy priority``.
    """

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        try:
            self._tide, anyhow = read_rules(vllm_config.additional_config)
        except RulesError as error:
            raise RulesError(f"--additional-config: {error}") from None
        why = refusal(vllm.__version__, _missing(), anyhow=anyhow, how=f"{KEY}.{ANY_VERSION}")
        if why is not None:
            raise RuntimeError(why)
        super().__init__(vllm_config, *args, **kwargs)
        if not isinstance(self.waiting, PriorityRequestQueue):
            raise RuntimeError("tidegate.vllm_plugin: expected --scheduling-policy priority, got another policy")
        self._tide = self._tide.keeping(self.scheduler_config.watermark)
        self._tide_allowance = Allowance(self._tide.preemptions_per_s)
        self._tide_patience = Patience(self._tide)
        self._tide_looked = 0.0
        self._tide_held = False
        self._tide_allocate = self.kv_cache_manager.allocate_slots
        self.kv_cache_manager.allocate_slots = self._tide_admit
        _log.info("tidegate bands on vLLM %s: %s", vllm.__version__, self._tide)

    # What vLLM calls.

    def add_request(self, request: Request) -> None:
        """Take a new request, or more input of one that is there."""
        if request.request_id not in self.requests:
            member = Member(band_of(request.priority, self._tide), time.monotonic())
            request.tidegate = member
            request.priority = place(member, 0)
        else:
            self.requests[request.request_id].tidegate.since = time.monotonic()
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Lay out the next step."""
        for request in self.running:
            request.priority = place(request.tidegate, request.num_computed_tokens)
        if self.waiting and self._pause_state == PauseState.UNPAUSED:
            now = time.monotonic()
            if now - self._tide_looked >= _PATIENCE_S:
                self._tide_looked = now
                self._tide_promote(now)
            self._tide_make_room(now)
        self._tide_hold_back()
        return super().schedule(*args, **kwargs)

    def _preempt_request(self, request: Request, timestamp: float, *args: Any, **kwargs: Any) -> None:
        member: Member = request.tidegate
        who = "a promoted one" if member.promoted else f"band {member.band}"
        _log.debug("tidegate: %s stopped at %d tokens", who, request.num_computed_tokens)
        super()._preempt_request(request, timestamp, *args, **kwargs)
        member.since = timestamp

    # What it does.

    def _tide_admit(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """Allocate blocks; for one that is admitted beside others only while its band's headroom stays free.

        A waiting request that holds blocks already (they were loaded for it) was held to that when it got them.
        """
        if request.status not in _WAITING or request.num_computed_tokens:
            return self._tide_allocate(request, *args, **kwargs)
        manager: Any = self.kv_cache_manager
        member, usual = request.tidegate, manager.watermark_blocks
        manager.watermark_blocks = max(usual, headroom(member, self._tide, self._tide_total()))
        try:
            blocks = self._tide_allocate(request, *args, **kwargs)
        finally:
            manager.watermark_blocks = usual
        if blocks is not None:
            self._tide_patience.admitted()
        return blocks

    def _tide_promote(self, now: float) -> None:
        by_member = {request.tidegate: request for request in self.waiting}
        member = self._tide_patience.promote(by_member, now)
        if member is not None:
            request = by_member[member]
            self.waiting.remove_request(request)
            request.priority = place(member, 0)
            self.waiting.add_request(request)

    def _tide_make_room(self, now: float) -> None:
        if self.waiting.peek_request().tidegate.band > self._tide.last_pressing:
            return
        groups = make_room(
            self._tide_waiters(),
            self._tide_runners(),
            self._tide,
            slots=self._tide_slots(),
            blocks=self._tide_blocks(),
            total=self._tide_total(),
        )
        for group in groups:
            if not self._tide_allowance.grant(now, len(group)):
                return
            for runner in group:
                request: Any = runner.handle
                self.running.remove(request)
                runner.member.stops += 1
                self._preempt_request(request, now, drop_stale_output=self.requires_kv_delivery)
                self.prev_step_scheduled_req_ids.discard(request.request_id)

    def _tide_hold_back(self) -> None:
        """Let prompts of lower bands pause for one of a band that may press, in every second step at most."""
        held: list[Share] = []
        if not self._tide_held and any(request.is_prefill_chunk for request in self.running):
            held = hold_back(self._tide_shares(), self._tide, self.max_num_scheduled_tokens)
        for share in held:
            paused: Any = share.handle
            paused.next_decode_eligible_step = self.current_step + 2  # not in the step that begins now
        self._tide_held = bool(held)

    def _tide_ready(self) -> Iterator[Request]:
        """Waiting requests that the next step does not pass over, in order."""
        adapters = {request.lora_request.lora_int_id for request in self.running if request.lora_request}
        full = self.lora_config is not None and len(adapters) >= self.lora_config.max_loras
        for request in self.waiting:
            if request.status not in _WAITING or (request.num_stale_output_tokens and not request.drop_stale_output):
                continue
            if full and request.lora_request and request.lora_request.lora_int_id not in adapters:
                continue
            yield request

    def _tide_waiters(self) -> Iterator[Waiter]:
        for request in islice(self._tide_ready(), _LOOKED_AT):
            yield Waiter(request.tidegate, self._tide_needs(request))

    def _tide_shares(self) -> Iterator[Share]:
        """What the running can use of a step, and the first of the waiting if it is to be admitted."""
        most = self.scheduler_config.long_prefill_token_threshold or self.max_num_scheduled_tokens
        for request in self.running:
            yield Share(request.tidegate, min(self._tide_ahead(request), most), request.is_prefill_chunk, request)
        first = next(self._tide_ready(), None) if self._tide_slots() > 0 else None
        if first is None or self._pause_state != PauseState.UNPAUSED:
            return
        if self._tide.bands[first.tidegate.band].may_preempt:  # what others need is not worth looking up
            keep = headroom(first.tidegate, self._tide, self._tide_total())
            if self._tide_needs(first) + keep <= self._tide_blocks():
                _, cached, _ = self.kv_cache_manager.get_computed_blocks(first)
                yield Share(first.tidegate, min(first.num_tokens - cached, most), prompt=True)

    def _tide_runners(self) -> Iterator[Runner]:
        for request in self.running:
            if self._request_blocks_can_be_freed(request):
                groups = self.kv_cache_manager.get_blocks(request.request_id).blocks
                freed = sum(block.ref_cnt == 1 and not block.is_null for group in groups for block in group)
                yield Runner(request.tidegate, request.num_computed_tokens, freed, request)

    def _tide_needs(self, request: Request) -> int:
        """Free blocks that vLLM will ask for to admit a request: all of its tokens, less what is cached and in use."""
        manager: Any = self.kv_cache_manager
        cached, tokens, _ = manager.get_computed_blocks(request)
        blocks: int = manager.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=min(request.num_tokens, self.max_model_len),
            new_computed_blocks=cached.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=tokens,
            num_local_computed_tokens=tokens,
            num_tokens_main_model=request.num_tokens,
            apply_admission_cap=True,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )
        return blocks

    def _tide_slots(self) -> int:
        """How many more may run."""
        taken = len(self.running) + self.num_waiting_for_streaming_input + len(self.kv_holding_waiting)
        free: int = self.max_num_active_reqs - taken
        return free

    def _tide_blocks(self) -> int:
        """Free blocks, less those that the running requests begin in this step, before anybody is admitted."""
        size = self.block_size
        free: int = self.kv_cache_manager.block_pool.get_num_free_blocks()
        for request in self.running:
            have = request.num_computed_tokens
            more = min(self._tide_ahead(request), self.max_num_scheduled_tokens)
            free -= -(-(have + more) // size) - -(-have // size)
        return free

    def _tide_ahead(self, request: Request) -> int:
        """Tokens of a running request that are to be computed and are in no step yet."""
        ahead: int = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
        return max(0, ahead)

    def _tide_total(self) -> int:
        total: int = self.kv_cache_manager.block_pool.num_gpu_blocks
        return total


def _missing() -> list[str]:
    """Name what is used here and not there, or without a parameter that is given."""
    found = []
    for used, parameters in USED:
        lacking = parameters - inspect.signature(used).parameters.keys()
        if lacking:
            found.append(f"{used.__qualname__} without {', '.join(sorted(lacking))}")
    return found
