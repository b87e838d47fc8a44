"""Closed forms of queueing theory, written apart from the scheduler: the oracles of ``tests/theory``.

Rates are per second, times in seconds. Classes are listed highest priority first. Sources:

* Erlang C: Erlang 1917; Kleinrock, Queueing Systems I (1975), eq. 3.40.
* Cobham, "Priority assignment in waiting line problems", Operations Research 2 (1954), and Kella & Yechiali 1985
  for several servers with one service rate.
* Kleinrock, "A delay dependent queue discipline", Naval Research Logistics Quarterly 11 (1964).
* Conservation law: Kleinrock, Queueing Systems II (1976), section 3.4.
* Shortest job first in M/G/1: Phipps 1956; Kleinrock II, eq. 3.38.
* Start-time fair queuing over D servers, SFQ(D): Jin, Chase, Kaur, SIGMETRICS 2004, theorem 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np


def erlang_c(servers: int, offered: float) -> float:
    """Return the probability that an arrival waits in M/M/c; ``offered`` is the load in Erlang, below ``servers``."""
    blocked = 1.0
    for k in range(1, servers + 1):  # Erlang B by its stable recursion
        blocked = offered * blocked / (k + offered * blocked)
    return blocked / (1 - (offered / servers) * (1 - blocked))


def mmc_wait(servers: int, rate: float, service_s: float) -> float:
    """Return the mean wait of M/M/c in seconds."""
    offered = rate * service_s
    return erlang_c(servers, offered) * service_s / (servers - offered)


def _residual(servers: int, rates: Sequence[float], service_s: float) -> float:
    """Return W0: the mean time until a seat falls free as an arrival sees it (zero when one is free)."""
    return erlang_c(servers, sum(rates) * service_s) * service_s / servers


def cobham(servers: int, rates: Sequence[float], service_s: float) -> list[float]:
    """Return the mean waits of non-preemptive priority in M/M/c, one per class."""
    residual = _residual(servers, rates, service_s)
    waits, above = [], 0.0
    for rate in rates:
        upto = above + rate * service_s / servers
        waits.append(residual / ((1 - above) * (1 - upto)))
        above = upto
    return waits


def accumulating(servers: int, rates: Sequence[float], slopes: Sequence[float], service_s: float) -> list[float]:
    """Return the mean waits when class i earns ``slopes[i]`` priority per second of waiting (slopes fall)."""
    load = [rate * service_s / servers for rate in rates]
    base = _residual(servers, rates, service_s) / (1 - sum(load))
    waits = [0.0] * len(rates)
    for p in reversed(range(len(rates))):  # from the lowest class up: each needs those below it
        below = sum(load[i] * waits[i] * (1 - slopes[i] / slopes[p]) for i in range(p + 1, len(rates)))
        above = sum(load[i] * (1 - slopes[p] / slopes[i]) for i in range(p))
        waits[p] = (base - below) / (1 - above)
    return waits


def conserved(servers: int, rates: Sequence[float], service_s: float) -> float:
    """Return the load-weighted sum of waits that no work-conserving, length-blind order can change."""
    total = sum(rates) * service_s / servers
    return total * mmc_wait(servers, sum(rates), service_s)


def sjf_wait(rate: float, size_s: float, density_load: Callable[[float], float], second_moment: float) -> float:
    """Return the mean wait of a job of ``size_s`` in M/G/1 under shortest job first.

    ``density_load(x)`` is the load of all jobs shorter than ``x``; ``second_moment`` is E[S^2] in s^2.
    """
    return (rate * second_moment / 2) / (1 - density_load(size_s)) ** 2


def exponential_load_below(rate: float, service_s: float) -> Callable[[float], float]:
    """Return x -> load of the jobs shorter than x when sizes are exponential with mean ``service_s``."""
    mu = 1 / service_s
    return lambda x: rate * (1 / mu - math.exp(-mu * x) * (x + 1 / mu))


def sfq_gap(depth: int, largest_a: float, largest_b: float) -> float:
    """Return the SFQ(D) bound on the difference of two backlogged flows' weighted service."""
    return (depth + 1) * (largest_a + largest_b)


def guard_seats_busy(seats: int, reserve: int, rate: float, service_s: float) -> float:
    """Return P(all busy at a p0 arrival) when endless lower work fills all but ``reserve`` seats (SPEC §5.5).

    Birth-death chain on c-R .. c with birth rate ``rate`` and death rates n/service, geometric above c (p0 waits).
    """
    mu = 1 / service_s
    weights = [1.0]
    for n in range(seats - reserve + 1, seats + 1):
        weights.append(weights[-1] * rate / (n * mu))
    ratio = rate / (seats * mu)
    tail = weights[-1] / (1 - ratio)  # state c and everything above it
    return tail / (sum(weights[:-1]) + tail)


def push_out_loss(seats: int, room: int, rates: tuple[float, float], service_s: float) -> tuple[float, float]:
    """Return the loss of two classes that share ``seats`` and ``room`` waiting places; class 0 displaces class 1.

    Solves the Markov chain of (waiting of class 0, waiting of class 1) with class 0 served first. A displaced ticket
    counts as lost to class 1.
    """
    mu = 1 / service_s
    states = [(-k, 0) for k in range(seats, 0, -1)]  # k free seats
    states += [(a, b) for a in range(room + 1) for b in range(room + 1 - a)]
    index = {state: i for i, state in enumerate(states)}
    flow = np.zeros((len(states), len(states)))

    def go(start: tuple[int, int], end: tuple[int, int], rate: float) -> None:
        flow[index[start], index[end]] += rate
        flow[index[start], index[start]] -= rate

    both = sum(rates)
    for state in states:
        a, b = state
        if a < 0:
            go(state, (a + 1, 0), both)
            if -a < seats:
                go(state, (a - 1, 0), (seats + a) * mu)
            continue
        if a + b < room:
            go(state, (a + 1, b), rates[0])
            go(state, (a, b + 1), rates[1])
        elif b:
            go(state, (a + 1, b - 1), rates[0])
        end = (a - 1, b) if a else (0, b - 1) if b else (-1, 0)
        go(state, end, seats * mu)
    system = np.vstack([flow.T, np.ones(len(states))])
    chance = np.linalg.lstsq(system, np.array([0.0] * len(states) + [1.0]), rcond=None)[0]
    full = {state: chance[i] for state, i in index.items() if state[0] >= 0 and sum(state) == room}
    lost0 = float(full[room, 0])
    displaced = sum(p for (_, b), p in full.items() if b) * rates[0]
    lost1 = float((sum(full.values()) * rates[1] + displaced) / rates[1])
    return lost0, lost1
