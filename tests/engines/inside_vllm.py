"""The scheduler class in vLLM's own scheduling code, without a model: what each step would compute is played.

Runs in vLLM's environment, as a program; prints one JSON object, what came of each scenario by its name. It plays the
worker's part: every request that a step brings to the end of its tokens gets one more.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import vllm
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from tidegate.vllm_plugin import TidegateScheduler, engine

BLOCK, SLOTS = 32, 4


class Clock:
    """Stands in for the plugin's ``time``; a step takes 50 ms."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Engine:
    """One scheduler and what runs in it.

    Attributes:
        scheduler: of vLLM or ours.
        wrong: whatever a worker or a rule would not stand.
    """

    def __init__(self, model: str, kind: Any = TidegateScheduler, *, blocks: int = 64, rules: Any = None, **more: Any):
        settings = {
            "scheduling_policy": "priority",
            "max_num_seqs": SLOTS,
            "max_num_batched_tokens": 128,
            "max_model_len": 2048,
            "block_size": BLOCK,
            "additional_config": {"tidegate": rules or {}},
            **more,
        }
        config = EngineArgs(model=model, dtype="bfloat16", enforce_eager=True, **settings).create_engine_config()
        config.cache_config.num_gpu_blocks = blocks
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        cache = KVCacheConfig(blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        self.clock = Clock()
        vars(engine)["time"] = self.clock
        self.scheduler = kind(config, cache, StructuredOutputManager(config), BLOCK)
        self.wrong: list[str] = []
        self.stops: list[float] = []
        self._numbers = itertools.count()
        self._flight: deque[tuple[Any, dict[str, list[int]]]] = deque()
        self._before: set[str] = set()
        self._preempt = self.scheduler._preempt_request
        self.scheduler._preempt_request = self._preempted

    def add(self, band: int, prompt: int, output: int, *, adapter: int = 0) -> Any:
        """Add a request whose prompt is like no other."""
        number = next(self._numbers)
        request = Request(
            request_id=f"p{band}-{number}",
            prompt_token_ids=[(number * 7919 + place) % 4000 + 10 for place in range(prompt)],
            sampling_params=SamplingParams(max_tokens=output, ignore_eos=True),
            pooling_params=None,
            priority=band,
            arrival_time=time.time() + number / 1000,
            block_hasher=get_request_block_hasher(BLOCK, sha256),
            lora_request=LoRARequest(str(adapter), adapter, "/nowhere") if adapter else None,
        )
        self.scheduler.add_request(request)
        return request

    def step(self, *, behind: int = 0) -> list[str]:
        """Lay out a step, and give the results of all but the last so many; give whose tokens the step computes."""
        self.clock.now += 0.05
        vars(engine)["time"] = self.clock
        laid = self.scheduler.schedule()
        cached = laid.scheduled_cached_reqs
        for number, name in enumerate(cached.req_ids):
            fresh = name in cached.resumed_req_ids or name not in self._before
            if fresh and cached.num_output_tokens[number] and name not in cached.all_token_ids:
                self.wrong.append(f"{name} comes to the worker without its tokens")
        self._before = set(laid.num_scheduled_tokens)
        ends = {name: [] if self.scheduler.requests[name].is_prefill_chunk else [7] for name in self._before}
        self._flight.append((laid, ends))
        while len(self._flight) > behind:
            laid, ends = self._flight.popleft()
            names = list(ends)
            told = ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=list(ends.values()),
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            )
            self.scheduler.update_from_output(laid, told)
        return list(self._before)

    def until(self, true: Callable[[], object], *, most: int = 5000) -> int:
        """Take steps until it is so; give how many."""
        for steps in range(most):
            if true():
                return steps
            self.step()
        self.wrong.append("it never came")
        return most

    def _preempted(self, request: Any, *arguments: Any, **more: Any) -> None:
        lower = [each.request_id for each in self.scheduler.running if each.tidegate.band > request.tidegate.band]
        if lower:
            self.wrong.append(f"{request.request_id} was stopped beside {lower}")
        self.stops.append(self.clock.now)
        self._preempt(request, *arguments, **more)


def slots(model: str) -> object:
    """A p0 comes when p2 holds all slots; one p2 has computed less than the others."""
    made = Engine(model)
    low = [made.add(2, 40, 60) for _ in range(SLOTS - 1)]
    made.until(lambda: low[0].num_output_tokens > 5)
    young = made.add(2, 40, 60)
    made.until(lambda: young.num_output_tokens > 2)
    high = made.add(0, 40, 5)
    steps = made.until(lambda: high.num_output_tokens)
    stopped = [request.num_preemptions for request in [*low, young]]
    made.until(lambda: not made.scheduler.requests)
    return {"steps": steps, "stopped": stopped, "tokens": [each.num_output_tokens for each in low], "wrong": made.wrong}


def adapters(model: str) -> object:
    """One adapter at a time; the p0 that waits needs another than the p2 that runs."""
    made = Engine(model, enable_lora=True, max_loras=1)
    low = [made.add(2, 40, 30, adapter=1) for _ in range(SLOTS)]
    made.until(lambda: low[0].num_output_tokens > 5)
    high = made.add(0, 40, 5, adapter=2)
    made.until(lambda: high.num_output_tokens)
    return {"stops": len(made.stops), "wrong": made.wrong}


def resumed(model: str) -> object:
    """Whoever is stopped and finds room again in the same step comes to the worker with its tokens."""
    made = Engine(model)
    low = [made.add(2, 40, 60) for _ in range(SLOTS)]
    made.until(lambda: low[0].num_output_tokens > 5)
    high = made.add(0, 40, 5)
    made.scheduler._tide_needs = lambda request: (
        made.scheduler.finish_requests([high.request_id], RequestStatus.FINISHED_ABORTED) and 2
    )  # it leaves between the look and the step
    made.step()
    made.until(lambda: not made.scheduler.requests)
    return {"stops": len(made.stops), "wrong": made.wrong}


def prompts(model: str) -> object:
    """A p0 comes behind a p2 whose prompt fills fifteen steps, and then p0 without end."""

    def behind(kind: Any) -> int:
        made = Engine(model, kind, blocks=300)
        made.add(2, 1900, 4)
        made.step()
        high = made.add(0, 40, 5)
        return made.until(lambda: high.num_output_tokens)

    made = Engine(model, blocks=300)
    low = made.add(2, 1900, 4)
    made.step()

    def flooded() -> bool:
        if len(made.scheduler.requests) < 3:
            made.add(0, 300, 2)
        return bool(low.num_output_tokens)

    found = {kind.__name__: behind(kind) for kind in (AsyncScheduler, TidegateScheduler)}
    return {**found, "p2 in a flood": made.until(flooded), "wrong": made.wrong}


def flood(model: str) -> object:
    """p0 keeps all slots busy for ever; p2 is admitted all the same, once it has waited long."""
    made = Engine(model, rules={"promote_after_s": 2.0})
    low = [made.add(2, 40, 20) for _ in range(3)]

    def flooded() -> bool:
        while len(made.scheduler.requests) < 3 * SLOTS:
            made.add(0, 20, 10)
        return all(each.is_finished() for each in low)

    return {"steps": made.until(flooded), "wrong": made.wrong}


def rate(model: str) -> object:
    """Four p0 a second, each of which would take the place of a p2, for ten seconds."""
    found: dict[str, object] = {"wrong": []}
    for name, rules in (("two a second", {"preemptions_per_s": 2, "max_preemptions": 1000}), ("none", {})):
        made = Engine(model, rules=rules or {"preemptions_per_s": 0})
        for number in range(200):
            while sum(each.tidegate.band == 2 for each in made.scheduler.requests.values()) < 2 * SLOTS:
                made.add(2, 20, 100)
            if number % 5 == 4:
                made.add(0, 20, 2)
            made.step()
        found |= {name: len(made.stops), "wrong": made.wrong}
    return found


def anything(model: str) -> object:
    """Random work with short memory, results up to two steps late; all of it must end whole and be given back."""
    wrong, stops = [], 0
    for seed in range(6):
        chance = random.Random(seed)
        blocks = (24, 40, 80)[seed % 3]
        rules = {"preemptions_per_s": 1000, "promote_after_s": 5.0}
        made = Engine(model, blocks=blocks, rules=rules, enable_prefix_caching=bool(seed % 2))
        asked: list[Any] = []
        while len(asked) < 40 or made.scheduler.requests:
            if len(asked) < 40 and chance.random() < 0.3:
                asked.append(made.add(chance.choice((0, 1, 2, 2)), chance.choice((5, 40, 300)), chance.choice((1, 90))))
            if asked and chance.random() < 0.02:
                made.scheduler.finish_requests(chance.choice(asked).request_id, RequestStatus.FINISHED_ABORTED)
            made.step(behind=seed % 3 if chance.random() > 0.2 else 0)
        left = [each for each in asked if each.status != RequestStatus.FINISHED_ABORTED]
        short = [each.request_id for each in left if each.num_output_tokens != each.max_tokens]
        if short or made.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() != blocks - 1:
            made.wrong.append(f"seed {seed}: not whole or not given back: {short}")
        wrong += made.wrong
        stops += len(made.stops)
    return {"stops": stops, "wrong": wrong}


def refused(model: str) -> object:
    """What the class says where it cannot work."""
    said = {}
    cases: tuple[tuple[str, Any, Any], ...] = (
        ("policy", {}, {"scheduling_policy": "fcfs"}),
        ("setting", {"preemption_per_s": 3}, {}),
        ("version", {}, {}),
    )
    for name, rules, more in cases:
        known = vllm.__version__
        try:
            vllm.__version__ = "0.99.0" if name == "version" else known
            Engine(model, rules=rules, **more)
        except (RuntimeError, ValueError) as error:
            said[name] = f"{type(error).__name__} {error}"
        finally:
            vllm.__version__ = known
    known_names = {"_version", "core", "vllm_plugin"}
    said["missing"] = str(engine._missing())
    said["imports"] = str(
        [name for name in sys.modules if name.startswith("tidegate.") and name.split(".")[1] not in known_names]
    )
    return said


SCENARIOS = (slots, adapters, resumed, prompts, flood, rate, anything, refused)

if __name__ == "__main__":
    init_none_hash(sha256)
    print(json.dumps({scenario.__name__: scenario(sys.argv[1]) for scenario in SCENARIOS}))  # noqa: T201 - read by a test
