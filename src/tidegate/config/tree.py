"""Read YAML to a tree that remembers where everything stood.

Scalars keep their text (see ``values`` for why). The tree is built by our own walk over PyYAML's nodes, which also
refuses what YAML allows and a settings file has no use for: duplicate keys, foreign tags, several documents, endless
or exploding aliases. Nesting and aliases are counted on the event stream first, because composing nodes recurses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tidegate.config.errors import ConfigError, Mark, Problem

MAX_BYTES = 8 * 1024**2
MAX_DEPTH = 24
MAX_ALIASES = 100
MAX_NODES = 200_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "timestamp", "value")}
_NULL, _MERGE = "tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"
_COLLECTION_TAGS = {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}
_CONTROL = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_VARIABLE = re.compile(r"\$(\$)?\{([^}]*)\}")


@dataclass(slots=True)
class Scalar:
    """Text as written (``raw``) and after the environment was filled in (``text``; ``None`` for null)."""

    text: str | None
    raw: str
    mark: Mark


@dataclass(slots=True)
class Seq:
    """A list."""

    items: list[Node]
    mark: Mark


@dataclass(slots=True)
class Map:
    """A mapping. ``keys`` holds the place of each key."""

    mark: Mark
    entries: dict[str, Node] = field(default_factory=dict)
    keys: dict[str, Mark] = field(default_factory=dict)

    def put(self, key: str, value: Node, mark: Mark) -> None:
        """Set one entry."""
        self.entries[key] = value
        self.keys[key] = mark


Node = Scalar | Seq | Map
Path_ = tuple[str | int, ...]


def dotted(path: Path_) -> str:
    """Write a path as ``models[0].name``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def read_text(path: Path) -> str:
    """Read a settings file.

    Raises:
        ConfigError: it is missing, unreadable, too large or not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        problem = Problem("", f"cannot read the file: {error.strerror or error}", mark=Mark(str(path)))
        raise ConfigError([problem]) from None
    if len(data) > MAX_BYTES:
        raise ConfigError([Problem("", f"expected at most {MAX_BYTES // 1024**2} MiB", mark=Mark(str(path)))])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        mark = Mark(str(path), before.count(b"\n") + 1, error.start - before.rfind(b"\n"))
        raise ConfigError([Problem("", "expected UTF-8 text", f"byte 0x{data[error.start]:02x}", mark=mark)]) from None


def parse_tree(text: str, *, source: str, environ: Mapping[str, str], problems: list[Problem]) -> Map:
    """Read YAML text whose root is a mapping. Recoverable problems are appended to ``problems``.

    Raises:
        ConfigError: the text is not YAML at all.
    """
    try:
        _check_shape(text, source)
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise ConfigError([_yaml_problem(error, source)]) from None
    if root is None:
        return Map(Mark(source, 1, 1))
    walk = _Walk(source, environ, problems)
    node = walk.node(root, ())
    if isinstance(node, Map):
        return node
    raise ConfigError([*problems, Problem("", "expected settings, like models:", describe(node), mark=node.mark)])


def describe(node: Node) -> str:
    """Say what stands there, shortened; text from the environment is named, not shown."""
    if isinstance(node, Map):
        return "a mapping"
    if isinstance(node, Seq):
        return "a list" if node.items else "an empty list"
    if node.text is None:
        return "nothing"
    shown = node.raw if len(node.raw) <= 60 else node.raw[:57] + "..."
    return repr(shown) if shown.isprintable() else ascii(shown)


def overlay(base: Node, over: Node | None) -> Node:
    """Lay one tree over another, key by key: the file over the preset, a mode over the policy.

    A section left empty changes nothing.
    """
    if over is None or (isinstance(base, Map) and isinstance(over, Scalar) and over.text is None):
        return base
    if not isinstance(base, Map) or not isinstance(over, Map):
        return over
    result = Map(over.mark, dict(base.entries), dict(base.keys))
    for key, node in over.entries.items():
        result.put(key, overlay(base.entries[key], node) if key in base.entries else node, over.keys[key])
    return result


def _check_shape(text: str, source: str) -> None:
    if control := _CONTROL.search(text):
        at = control.start()
        mark = Mark(source, text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))
        raise ConfigError([Problem("", "expected printable text", ascii(control[0]), mark=mark)])
    depth = aliases = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
        if depth > MAX_DEPTH or aliases > MAX_ALIASES:
            what = f"at most {MAX_DEPTH} levels of nesting" if depth > MAX_DEPTH else f"at most {MAX_ALIASES} aliases"
            start = event.start_mark
            mark = Mark(source, start.line + 1, start.column + 1) if start else Mark(source)
            raise ConfigError([Problem("", f"expected {what}", mark=mark)])


def _yaml_problem(error: yaml.YAMLError, source: str) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
        at = Mark(source, mark.line + 1, mark.column + 1)
        return Problem("", f"expected YAML: {error.problem or error.context}", mark=at)
    return Problem("", f"expected YAML: {str(error).splitlines()[0]}", mark=Mark(source))


class _Walk:
    """One pass over the nodes of one source."""

    def __init__(self, source: str, environ: Mapping[str, str], problems: list[Problem]) -> None:
        self._source = source
        self._environ = environ
        self._problems = problems
        self._open: set[int] = set()
        self._visited = 0

    def node(self, node: Any, path: Path_) -> Node:
        mark = self._mark(node)
        self._visited += 1
        if self._visited > MAX_NODES:
            raise ConfigError([Problem(dotted(path), "expected fewer settings: aliases multiply them", mark=mark)])
        if len(self._open) > MAX_DEPTH:
            raise ConfigError([Problem(dotted(path), f"expected at most {MAX_DEPTH} levels of nesting", mark=mark)])
        if id(node) in self._open:
            raise ConfigError([Problem(dotted(path), "expected no alias to what contains it", mark=mark)])
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path, mark)
        if node.tag not in _COLLECTION_TAGS:
            self._say(path, "expected no YAML tag", repr(node.tag), mark)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return Seq([self.node(item, (*path, index)) for index, item in enumerate(node.value)], mark)
            return self._map(node, path, mark)
        finally:
            self._open.discard(id(node))

    def _map(self, node: Any, path: Path_, mark: Mark) -> Map:
        result = Map(mark)
        merged: list[Map] = []
        for key_node, value_node in node.value:
            key_mark = self._mark(key_node)
            if key_node.tag == _MERGE:
                merged += self._merged(value_node, path)
                continue
            if not isinstance(key_node, yaml.ScalarNode) or not key_node.value:
                self._say(path, "expected a setting's name as key", "", key_mark)
                continue
            key = key_node.value
            if key in result.entries:
                first = result.keys[key].line
                self._say((*path, key), f"expected each key once, it stands on line {first} already", "", key_mark)
                continue
            result.put(key, self.node(value_node, (*path, key)), key_mark)
        for other in merged:
            for key, value in other.entries.items():
                if key not in result.entries:
                    result.put(key, value, other.keys[key])
        return result

    def _merged(self, node: Any, path: Path_) -> list[Map]:
        value = self.node(node, path)
        maps = value.items if isinstance(value, Seq) else [value]
        if not all(isinstance(item, Map) for item in maps):
            self._say((*path, "<<"), "expected a mapping to merge", "", value.mark)
        return [item for item in maps if isinstance(item, Map)]

    def _scalar(self, node: Any, path: Path_, mark: Mark) -> Scalar:
        if node.tag == _NULL and not node.style:
            return Scalar(None, node.value, mark)
        if node.tag not in _PLAIN_TAGS:
            self._say(path, "expected no YAML tag", repr(node.tag), mark)
        return Scalar(self._filled(node.value, path, mark), node.value, mark)

    def _filled(self, text: str, path: Path_, mark: Mark) -> str:
        """Fill in ``${NAME}``; ``$${NAME}`` stands for the text itself."""

        def value(match: re.Match[str]) -> str:
            if match[1]:
                return match[0][1:]
            name = match[2]
            if name not in self._environ:
                self._say(path, f"expected the environment variable {name!r} to be set", "", mark)
                return ""
            return self._environ[name]

        return _VARIABLE.sub(value, text) if "${" in text else text

    def _mark(self, node: Any) -> Mark:
        return Mark(self._source, node.start_mark.line + 1, node.start_mark.column + 1)

    def _say(self, path: Path_, expected: str, came: str, mark: Mark) -> None:
        self._problems.append(Problem(dotted(path), expected, came, mark=mark))
