"""Estimates in a simulation as the gateway makes them: learned from what requests really used."""

from __future__ import annotations

from tidegate.classify import ParsedBody, Route
from tidegate.classify.estimates import LearnedPredictor, Quantiles
from tidegate.core import Outcome, WorkEstimate
from tidegate.simulation import Record, Request

_WORD = b" 123"  # four bytes, one token by the first count


class GatewayEstimator:
    """The gateway's own predictor over requests of a simulation; see ``simulation.run.Estimator``.

    The first count of a prompt is right on average: real tokenizers differ from it, which the gateway learns.
    """

    def __init__(self) -> None:
        self._predictor = LearnedPredictor()
        self._predicted: dict[int, Quantiles] = {}
        self._count = 0

    def predict(self, request: Request) -> WorkEstimate:
        """See ``Estimator``."""
        raw = _WORD * request.prompt_tokens
        predicted = self._predictor.predict(
            request.tenant,
            request.pool,
            request.band,
            route=Route.CHAT,
            raw=raw,
            body=ParsedBody(),
            limit=request.max_tokens,
        )
        self._predicted[self._count] = predicted
        self._count += 1
        return predicted.work

    def learn(self, record: Record) -> None:
        """See ``Estimator``."""
        predicted = self._predicted.pop(record.id, None)
        if predicted is not None and record.outcome is Outcome.COMPLETED:
            self._predictor.learn(predicted, input_tokens=record.prompt_tokens, output_tokens=record.output_tokens)
