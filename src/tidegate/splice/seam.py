"""Find a stop text that begins in one leg and ends in the next, which no engine can see."""

from __future__ import annotations


class Seam:
    """What may come of the stops whose beginning stands at the end of the text so far.

    Text after the seam is held back as long as it goes on like one of them, at most the length of a stop.
    """

    __slots__ = ("_held", "_rests")

    def __init__(self, text: str, stops: tuple[str, ...]) -> None:
        self._held = ""
        self._rests = [stop[count:] for stop in stops for count in range(1, len(stop)) if text.endswith(stop[:count])]

    def pass_on(self, text: str) -> tuple[str, bool]:
        """Return what of ``text`` may go out now, and whether a stop is complete, which ends the answer before it."""
        if not self._rests:
            return text, False
        text = self._held + text
        self._held = ""
        if any(text.startswith(rest) for rest in self._rests):
            return "", True
        self._rests = [rest for rest in self._rests if rest.startswith(text)]
        if self._rests:
            self._held = text
            return "", False
        return text, False

    def release(self) -> str:
        """Give what is held back: the answer ends here, and no stop came of it."""
        text, self._held = self._held, ""
        self._rests = []
        return text
