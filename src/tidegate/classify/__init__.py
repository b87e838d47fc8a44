"""From a request to its tenant, band, pool and estimate, and to what goes upstream. Pure: no clock, no I/O."""

from tidegate.classify.body import fallback_allowed, is_given, parse_body
from tidegate.classify.classifier import Classified, Classifier, Facts
from tidegate.classify.estimates import LearnedPredictor, Predictor, Quantiles
from tidegate.classify.fields import ParsedBody
from tidegate.classify.form import Place, is_form, model_of_form, with_model
from tidegate.classify.headers import (
    HeaderNames,
    RawHeaders,
    answer_headers,
    by_name,
    check_headers,
    check_json,
    downstream_headers,
    read_headers,
    unmeasured_headers,
    upstream_headers,
    upstream_lines,
)
from tidegate.classify.identity import Headers, Shown, Tenant, foreign_host, is_loopback_host
from tidegate.classify.labels import language
from tidegate.classify.outcome import Refused
from tidegate.classify.rewrite import ClientPriority, Usage, upstream_body
from tidegate.classify.route import CAP_FIELD, Route, may_pass, route_of

__all__ = [
    "CAP_FIELD",
    "Classified",
    "Classifier",
    "ClientPriority",
    "Facts",
    "HeaderNames",
    "Headers",
    "LearnedPredictor",
    "ParsedBody",
    "Place",
    "Predictor",
    "Quantiles",
    "RawHeaders",
    "Refused",
    "Route",
    "Shown",
    "Tenant",
    "Usage",
    "answer_headers",
    "by_name",
    "check_headers",
    "check_json",
    "downstream_headers",
    "fallback_allowed",
    "foreign_host",
    "is_form",
    "is_given",
    "is_loopback_host",
    "language",
    "may_pass",
    "model_of_form",
    "parse_body",
    "read_headers",
    "route_of",
    "unmeasured_headers",
    "upstream_body",
    "upstream_headers",
    "upstream_lines",
    "with_model",
]
