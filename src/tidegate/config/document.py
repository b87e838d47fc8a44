"""Write settings in the form of the file, and read that form back: what the control API shows and takes.

Durations, sizes and parts are written so that reading gives the same value. Secrets are never written.
"""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction
from functools import cache
from typing import Any

from pydantic import SecretStr

from tidegate.config.errors import REQUEST, ConfigError, Mark, Problem
from tidegate.config.fields import Kind, Section, ShedModel
from tidegate.config.policy import PolicySettings
from tidegate.config.shape import build, field_annotation, member
from tidegate.config.tree import Map, Node, Scalar, Seq, overlay
from tidegate.config.values import Address, duration_text, number_text, size_text


class _OnlyPolicy(Section):
    policy: PolicySettings


def document(section: Section) -> dict[str, Any]:
    """Return a section in the file's form, as it goes into JSON."""
    return {
        key: _written(annotation, value)
        for key, annotation in _annotations(type(section))
        if not isinstance(value := getattr(section, key), SecretStr)
    }


def node_of(value: object, mark: Mark = REQUEST) -> Node:
    """Return the tree of a decoded JSON value, as if it had stood in a file."""
    if isinstance(value, dict):
        result = Map(mark)
        for key, item in value.items():
            result.put(str(key), node_of(item, mark), mark)
        return result
    if isinstance(value, list | tuple):
        return Seq([node_of(item, mark) for item in value], mark)
    if value is None:
        return Scalar(None, "null", mark)
    text = str(value).lower() if isinstance(value, bool) else number_text(value)
    return Scalar(text, text, mark)


def read_policy(value: object) -> PolicySettings:
    """Read a whole policy in the file's form.

    Raises:
        ConfigError: with every problem; paths begin with ``policy``.
    """
    return _read_policy(node_of(value))


def with_overlay(policy: PolicySettings, changes: dict[str, Any]) -> PolicySettings:
    """Return the policy with some settings changed, key by key.

    Raises:
        ConfigError: with every problem; paths begin with ``policy``.
    """
    return _read_policy(overlay(node_of(document(policy)), node_of(changes)))


def missing(wanted: dict[str, Any], came: object, path: str = "policy") -> list[Problem]:
    """Return a problem for each setting of ``wanted`` that a document which should be whole leaves out."""
    if not isinstance(came, dict):
        return []
    found = []
    for key, value in wanted.items():
        if key not in came:
            found.append(Problem(f"{path}.{key}", "expected the whole policy, this is missing", mark=REQUEST))
        elif isinstance(value, dict):
            found += missing(value, came[key], f"{path}.{key}")
    return found


def _read_policy(node: Node) -> PolicySettings:
    root = Map(REQUEST)
    root.put("policy", node, REQUEST)
    problems: list[Problem] = []
    read = build(_OnlyPolicy, root, problems)
    if read is None:
        raise ConfigError(problems)
    names = read.policy.bands
    return read.policy.model_copy(update={"bands": {name: names[name] for name in sorted(names)}})


@cache
def _annotations(model: type[Section]) -> tuple[tuple[str, Any], ...]:
    return tuple((key, field_annotation(model, key)) for key in model.model_fields)


@cache
def _form(annotation: Any) -> tuple[str, Any, str]:
    """Return a field's shape, what is inside, and the label of its kind."""
    shape, inner = member(annotation)
    labels = [kind.label for kind in getattr(inner, "__metadata__", ()) if isinstance(kind, Kind)]
    return shape, inner, labels[0] if labels else ""


def _written(annotation: Any, value: Any) -> Any:
    shape, inner, label = _form(annotation)
    if value is None:
        return None
    if isinstance(value, Section):
        return document(value)
    if shape == "list":
        return [_written(inner, item) for item in value]
    if shape == "map":
        return {key: _written(inner, item) for key, item in value.items()}
    return _plain(label, value)


def _plain(label: str, value: Any) -> Any:
    if label.startswith("duration"):
        return duration_text(value)
    if label == "size":
        return size_text(value)
    if isinstance(value, Fraction):
        return _part(value)
    if isinstance(value, ShedModel):
        return {"model": value.model}
    if isinstance(value, Address):
        return str(value)
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return value


def _part(value: Fraction) -> float | int | str:
    """A number where that is exact as a decimal, else a fraction."""
    if value.denominator == 1:
        return int(value)
    decimal = float(value)
    return decimal if Fraction(number_text(decimal)) == value else f"{value.numerator}/{value.denominator}"
