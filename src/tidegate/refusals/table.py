"""Every way to say no, as one table (SPEC §6). Code, metrics and docs use the same reasons.

429 means that we are busy, 503 that nothing is there to serve. A test fails if a reason has no row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidegate.core import Reason


class Retry(Enum):
    """Whether the same request may succeed later, and how far apart those who come back are spread."""

    NEVER = "never"
    SOON = "soon"
    OVERLOAD = "overload"


@dataclass(slots=True, frozen=True)
class Row:
    """One reason: HTTP status, ``error.code``, ``error.type``, and what to tell whom."""

    status: int
    code: str
    type: str
    retry: Retry
    en: str
    zh: str


_RATE, _SERVER, _REQUEST = "rate_limit_error", "server_error", "invalid_request_error"

TABLE: dict[Reason, Row] = {
    Reason.QUEUE_FULL: Row(
        429, "queue_full", _RATE, Retry.OVERLOAD, "The queue is full. Please try again later.", "排队已满，请稍后再试。"
    ),
    Reason.DISPLACED: Row(
        429,
        "displaced",
        _RATE,
        Retry.OVERLOAD,
        "The request gave up its place in the queue to others. Please try again later.",
        "请求在排队中让位给了其他请求，请稍后再试。",
    ),
    Reason.EXPIRED: Row(
        429,
        "queue_timeout",
        _RATE,
        Retry.OVERLOAD,
        "The request waited longer than it may. Please try again later.",
        "请求排队超时，请稍后再试。",
    ),
    Reason.SHED: Row(
        429,
        "load_shed",
        _RATE,
        Retry.OVERLOAD,
        "The service is under high load and does not take this kind of request now. Please try again later.",
        "服务负载过高，暂不接受此类请求，请稍后再试。",
    ),
    Reason.TENANT_LIMIT: Row(
        429,
        "rate_limit_exceeded",
        _RATE,
        Retry.SOON,
        "A limit of your account is reached. Please try again later.",
        "已达到您账户的限额，请稍后再试。",
    ),
    Reason.PREEMPTED: Row(
        503,
        "preempted",
        _SERVER,
        Retry.SOON,
        "The request was stopped for more urgent work. Please try again.",
        "请求因更紧急的任务被中止，请重试。",
    ),
    Reason.UPSTREAM_BUSY: Row(
        429,
        "upstream_busy",
        _RATE,
        Retry.SOON,
        "Every backend of the model is at its quota. Please try again later.",
        "该模型的所有后端均已达到配额，请稍后再试。",
    ),
    Reason.NO_BACKEND: Row(
        503,
        "no_backend",
        _SERVER,
        Retry.SOON,
        "No backend of the model is available. Please try again later.",
        "该模型暂无可用后端，请稍后再试。",
    ),
    Reason.UPSTREAM_ERROR: Row(
        502, "upstream_error", _SERVER, Retry.SOON, "The backend failed. Please try again.", "后端出错，请重试。"
    ),
    Reason.UPSTREAM_TIMEOUT: Row(
        504,
        "upstream_timeout",
        _SERVER,
        Retry.SOON,
        "The backend did not answer in time. Please try again.",
        "后端响应超时，请重试。",
    ),
    Reason.DRAINING: Row(
        503,
        "draining",
        _SERVER,
        Retry.SOON,
        "The gateway is shutting down. Please try again.",
        "网关正在关闭，请重试。",
    ),
    Reason.CANCELLED: Row(499, "cancelled", _REQUEST, Retry.NEVER, "The request was cancelled.", "请求已取消。"),
    Reason.UNAUTHORIZED: Row(401, "unauthorized", _REQUEST, Retry.NEVER, "No valid key was given.", "密钥无效。"),
    Reason.FORBIDDEN_BAND: Row(
        403, "forbidden_band", _REQUEST, Retry.NEVER, "The band may not be used.", "无权使用该优先级。"
    ),
    Reason.UNKNOWN_MODEL: Row(404, "unknown_model", _REQUEST, Retry.NEVER, "There is no such model.", "模型不存在。"),
    Reason.BAD_REQUEST: Row(400, "bad_request", _REQUEST, Retry.NEVER, "The request is not valid.", "请求无效。"),
    Reason.TOO_LARGE: Row(413, "too_large", _REQUEST, Retry.NEVER, "The request is too large.", "请求过大。"),
    Reason.DEPENDENCY_FAILED: Row(
        424,
        "dependency_failed",
        _REQUEST,
        Retry.NEVER,
        "A request that this one depends on did not complete.",
        "所依赖的请求未能完成。",
    ),
    Reason.DEPENDENCY_CYCLE: Row(
        409,
        "dependency_cycle",
        _REQUEST,
        Retry.NEVER,
        "The request depends on itself.",
        "请求依赖成环。",
    ),
}
