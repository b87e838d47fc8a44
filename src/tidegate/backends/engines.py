"""What differs between kinds of engine, as a table, and how an error inside a 200 stream looks.

Sources: vLLM (lower priority is earlier; refuses inside a stream in a burst), SGLang (higher is earlier), llama.cpp
(announces keep-alive and closes the socket after a streamed answer; fails a whole batch inside 200 streams).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, StrEnum


class Reuse(StrEnum):
    """When a connection may carry another request after a complete response."""

    ALWAYS = "always"
    AFTER_PLAIN = "after_plain"  # not after a response without Content-Length, which is what a stream is


class PrioritySign(Enum):
    """Which way the engine's ``priority`` field counts; the value multiplies a rank where 0 is the best."""

    LOWER_FIRST = 1
    HIGHER_FIRST = -1
    NONE = 0


@dataclass(frozen=True, slots=True)
class EngineKind:
    """One row of the table.

    Attributes:
        name: as in the configuration file.
        priority: sign of its ``priority`` field.
        reuse: when its connections may be used again.
        health: page that says whether it is well; its list of models for one that is not ours to ask for more.
        look_every_s: time between two looks at that page while it is well; a vendor's is not asked all the time.
        continues: goes on with a text it is given: completions behind their prompt, chat behind the last message of the
            assistant (``continue_final_message``; llama.cpp does without being told).
        tells_usage: tells the usage in every event of a stream when asked (``continuous_usage_stats``).
    """

    name: str
    priority: PrioritySign
    reuse: Reuse
    health: bytes = b"/health"
    look_every_s: float = 5.0
    continues: bool = True
    tells_usage: bool = False

    def priority_of(self, rank: int) -> int | None:
        """Turn a rank (0 is best) into the engine's ``priority`` value; None where the engine knows none."""
        return None if self.priority is PrioritySign.NONE else rank * self.priority.value


ENGINES = {
    kind.name: kind
    for kind in (
        EngineKind("vllm", PrioritySign.LOWER_FIRST, Reuse.ALWAYS, tells_usage=True),
        EngineKind("sglang", PrioritySign.HIGHER_FIRST, Reuse.ALWAYS, tells_usage=True),
        EngineKind("llamacpp", PrioritySign.NONE, Reuse.AFTER_PLAIN),
        EngineKind("openai", PrioritySign.NONE, Reuse.ALWAYS, health=b"/v1/models", look_every_s=60.0, continues=False),
        EngineKind("tidegate", PrioritySign.LOWER_FIRST, Reuse.ALWAYS),
    )
}
"""Every engine kind by the name used in the configuration file."""

# Possessive (*+, ++): a hostile start of a stream cannot make the search go back over what it has passed.
_ERROR_START = re.compile(
    rb"(?:\xef\xbb\xbf)?"
    rb"(?:[\r\n]++|:[^\r\n]*+[\r\n]++|(?:id|retry):[^\r\n]*+[\r\n]++)*+"  # blank lines, comments, bookkeeping
    rb"(?:event: ?error[\r\n]|"
    rb"(?:data|error): ?\{\s*+(?:\"error\"\s*+:\s*+[{\[\"t\d-]|\"object\"\s*+:\s*+\"error\")|"
    rb"error: ?\{)"
)


def stream_error(start: bytes) -> bool:
    """Tell whether an event stream begins with an error event instead of an answer.

    Knows ``data: {"error": …}`` (vLLM, SGLang, llama.cpp, OpenAI), ``data: {"object":"error"`` (older vLLM),
    ``error: {…}`` (older llama.cpp) and ``event: error``, after any comments and blank lines.

    Args:
        start: the first bytes of the body. With too few of them the answer is False; ask again with more.
    """
    return _ERROR_START.match(start) is not None
