"""Hold a tree against the models: unknown names, missing sections, lists for mappings, then the values.

The walk is driven by the models themselves, so that a new field needs no second table. What is left for pydantic are
the values, whose errors are led back to the place in the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError

from tidegate.config.errors import Mark, Problem
from tidegate.config.fields import BAND, Kind, Section
from tidegate.config.later import not_yet
from tidegate.config.tree import Map, Node, Path_, Scalar, Seq, describe, dotted
from tidegate.config.values import ExpectedError, nearest

_M = TypeVar("_M", bound=Section)


def build(model: type[_M], tree: Map, problems: list[Problem]) -> _M | None:
    """Make the model of a tree, or append what is wrong and return ``None``."""
    found: list[Problem] = []
    data = _mapping(model, tree, (), found)
    try:
        result = model.model_validate(data)
    except ValidationError as error:
        found += _translated(error, tree)
        result = None
        if not found and not problems:  # told in pydantic's words rather than not at all
            found = [Problem(dotted(item["loc"]), item["msg"]) for item in error.errors()]
    told = {problem.path for problem in problems}  # a variable that is not set left an empty text: that is no news
    problems += [problem for problem in found if problem.path not in told]
    return None if found else result


def unknown_bands(model: type[Section], tree: Map, names: list[str]) -> list[Problem]:
    """Return a problem for every setting that names a band which does not exist."""
    return list(_band_names(model, tree, (), names))


def locate(tree: Node, path: Path_) -> tuple[Node, Mark]:
    """Return the deepest node on ``path`` and where it stands (for a mapping's entry, its key)."""
    node: Node = tree
    mark = tree.mark
    for part in path:
        if isinstance(node, Map) and isinstance(part, str) and part in node.entries:
            mark = node.keys[part]
            node = node.entries[part]
        elif isinstance(node, Seq) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            mark = node.mark
        else:
            break
    return node, mark


def member(annotation: Any) -> tuple[str, Any]:
    """Tell a field's shape: ``("model" | "list" | "map" | "value", the model or item inside)``."""
    origin = get_origin(annotation)
    if origin is Annotated:
        shape, inner = member(get_args(annotation)[0])
        parsed = any(isinstance(item, Kind) for item in annotation.__metadata__)
        return ("value", annotation) if parsed else (shape, inner)
    if origin in (Union, UnionType):
        inner = [arg for arg in get_args(annotation) if arg is not NoneType]
        return member(inner[0])
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "model", annotation
    if origin is tuple:
        return "list", get_args(annotation)[0]
    if origin is dict:
        return "map", get_args(annotation)[1]
    return "value", annotation


def field_annotation(model: type[Section], key: str) -> Any:
    """The whole annotation of a field (pydantic splits ``Annotated`` into type and metadata)."""
    info = model.model_fields[key]
    return Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation


def _mapping(model: type[Section], tree: Map, path: Path_, found: list[Problem]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, node in tree.entries.items():
        here = (*path, key)
        if key not in model.model_fields:
            found.append(_unknown(model, here, tree.keys[key]))
            continue
        if belongs := not_yet(here):
            found.append(_later(here, belongs, tree.keys[key]))
            continue
        if belongs := _later_value(here, node):
            found.append(_later(here, belongs, node.mark))
            continue
        shape, inner = member(field_annotation(model, key))
        if shape != "value" and isinstance(node, Scalar) and node.text is None:
            continue  # a section whose entries are all commented out
        data[key] = _value(shape, inner, node, here, found)
    return data


def _value(shape: str, inner: Any, node: Node, path: Path_, found: list[Problem]) -> Any:
    if shape == "model":
        if isinstance(node, Map):
            return _mapping(inner, node, path, found)
        if isinstance(node, Scalar) and node.text is None:
            return {}
        found.append(Problem(dotted(path), "expected a mapping", describe(node), mark=node.mark))
    elif shape == "list":
        if isinstance(node, Seq):
            item_shape, item = member(inner)
            return [_value(item_shape, item, value, (*path, i), found) for i, value in enumerate(node.items)]
        found.append(Problem(dotted(path), "expected a list", describe(node), mark=node.mark))
    elif shape == "map":
        if isinstance(node, Map):
            item_shape, item = member(inner)
            pairs = node.entries.items()
            return {key: _value(item_shape, item, value, (*path, key), found) for key, value in pairs}
        found.append(Problem(dotted(path), "expected a mapping", describe(node), mark=node.mark))
    return plain(node)


def _band_names(inner: Any, node: Node, path: Path_, names: list[str]) -> Iterator[Problem]:
    shape, item = member(inner)
    if isinstance(node, Map) and shape == "model":
        for key in item.model_fields.keys() & node.entries.keys():
            yield from _band_names(field_annotation(item, key), node.entries[key], (*path, key), names)
    elif isinstance(node, Map) and shape == "map":
        for key, value in node.entries.items():
            yield from _band_names(item, value, (*path, key), names)
    elif isinstance(node, Seq) and shape == "list":
        for index, value in enumerate(node.items):
            yield from _band_names(item, value, (*path, index), names)
    elif isinstance(node, Scalar) and BAND in getattr(item, "__metadata__", ()) and node.text not in (None, *names):
        expected = f"expected a band, one of {', '.join(names)}"
        yield Problem(dotted(path), expected, describe(node), nearest(node.text or "", names), node.mark)


def plain(node: Node) -> Any:
    """Return the tree without places: dicts, lists and texts."""
    if isinstance(node, Map):
        return {key: plain(value) for key, value in node.entries.items()}
    if isinstance(node, Seq):
        return [plain(item) for item in node.items]
    return node.text


def _unknown(model: type[Section], path: Path_, mark: Mark) -> Problem:
    if belongs := not_yet(path):
        return _later(path, belongs, mark)
    known = list(model.model_fields)
    close = nearest(str(path[-1]), known)
    takes = "" if close else f"; {dotted(path[:-1]) or 'the file'} takes {', '.join(known)}"
    return Problem(dotted(path), f"unknown setting{takes}", nearest=close, mark=mark)


def _later_value(path: Path_, node: Node) -> str | None:
    value = "{}" if isinstance(node, Map) else node.text if isinstance(node, Scalar) else None
    return not_yet(path, value) if value else None


def _later(path: Path_, belongs: str, mark: Mark) -> Problem:
    return Problem(dotted(path), f"not in this version: {belongs}", mark=mark)


def _translated(error: ValidationError, tree: Map) -> Iterator[Problem]:
    for item in error.errors(include_url=False, include_input=False):
        kind, loc = item["type"], item["loc"]
        path = _known_part(tree, loc)
        node, mark = locate(tree, path)
        if kind == "missing":
            yield Problem(dotted((*path, str(loc[-1]))), f"expected {loc[-1]}, it is required", mark=mark)
        elif kind == "value_error" and not _is_default(node, loc[len(path) :]):
            yield _unreadable(item["ctx"]["error"], node, path)
        elif kind == "too_short" and _size(node) == 0:
            yield Problem(dotted(path), "expected at least one", "an empty list", mark=node.mark)
        elif kind == "too_long":
            yield Problem(dotted(path), f"expected at most {item['ctx']['max_length']}", str(_size(node)), mark=mark)


def _unreadable(cause: Exception, node: Node, path: Path_) -> Problem:
    if not isinstance(cause, ExpectedError):
        raise cause
    came = cause.came or ("a value that is not shown" if cause.secret else describe(node))
    return Problem(dotted(path), cause.expected, came, cause.nearest, node.mark)


def _is_default(node: Node, rest: tuple[int | str, ...]) -> bool:
    """Whether the value came from another setting (``max_band`` from ``band``), which has its own problem."""
    return isinstance(node, Map) and bool(rest)


def _size(node: Node) -> int:
    return len(node.items) if isinstance(node, Seq) else len(node.entries) if isinstance(node, Map) else 0


def _known_part(tree: Node, loc: tuple[int | str, ...]) -> Path_:
    """The part of pydantic's location that is a path (the rest names branches of a union)."""
    path: list[str | int] = []
    node = tree
    for part in loc:
        if isinstance(node, Map) and isinstance(part, str) and part in node.entries:
            node = node.entries[part]
        elif isinstance(node, Seq) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
        else:
            break
        path.append(part)
    return tuple(path)
