"""From a request to all that the scheduler needs of it, or to its refusal. Pure; built from the settings.

The order of the questions is that of SPEC §1 and of what may be told to whom: who calls comes first, so that nobody
without a key learns which models or bands there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tidegate.classify.bands import BandChooser, Choice
from tidegate.classify.body import ParsedBody
from tidegate.classify.estimates import EstimateRequest, LearnedPredictor, Predictor, Quantiles
from tidegate.classify.identity import Headers, Identities, Tenant
from tidegate.classify.labels import read_labels
from tidegate.classify.outcome import Refused
from tidegate.classify.route import Route
from tidegate.config import WILDCARD
from tidegate.core import Reason, WorkEstimate

if TYPE_CHECKING:
    from tidegate.config import Settings

_LISTED_MODELS = 20


class Facts(msgspec.Struct, gc=False):
    """What is known of a request once its body is there.

    Attributes:
        route: the endpoint.
        path: request path without the query.
        headers: by lower-case name, as ``by_name`` gives them.
        raw: the body as it came.
        body: what ``parse_body`` made of it.
        fresh_id: a new request id, used when the client gave no usable one.
        tenant: result of an earlier ``identify``, which is then not repeated.
    """

    route: Route
    path: str
    headers: Headers
    raw: bytes
    body: ParsedBody
    fresh_id: str
    tenant: Tenant | None = None


class Classified(msgspec.Struct, gc=False):
    """A request as the scheduler and the gateway need it.

    Attributes:
        tenant: who pays.
        band: index of the band; ``band_name`` is its name.
        pool: name of the pool.
        model: model name that the client sent, empty if none.
        upstream_model: name to write into the body, ``None`` when the client's own is right.
        flow: fairness id.
        predicted: quantiles behind ``work``; ``learn`` wants them back.
        ttl_s: longest wait that the client allows, seconds; ``None``: the band's.
        deadline_s: when the client gives up, seconds from now; ``None``: unknown.
        request_id: the request's name, the client's own or the fresh one.
        depends_on: names that must be done first.
        tier: service tier to report in the answer; ``None`` when the request had none.
        max_output_tokens: cap to write into the body; ``None``: none.
        clamped: the tenant's ``max_band`` lowered the band.
        demoted: ``max_input_tokens`` lowered the band.
        language: ``zh`` or ``en``.
        idempotency_key: the client's, empty if none.
    """

    tenant: Tenant
    band: int
    band_name: str
    pool: str
    model: str
    upstream_model: str | None
    flow: str
    work: WorkEstimate
    predicted: Quantiles
    ttl_s: float | None
    deadline_s: float | None
    request_id: str
    depends_on: tuple[str, ...]
    tier: str | None
    max_output_tokens: int | None
    clamped: bool
    demoted: bool
    language: str
    idempotency_key: str


@dataclass(slots=True, frozen=True)
class _Model:
    pool: str
    upstream: str | None


class Classifier:
    """Classifies requests. ``predictor`` may be replaced by another ``Predictor``."""

    def __init__(self, settings: Settings, predictor: Predictor | None = None) -> None:
        self.identities = Identities(settings)
        self._callers: tuple[object, ...] = (None,)
        self.predictor: Predictor = predictor if predictor is not None else LearnedPredictor()
        self.obey(settings)

    def obey(self, settings: Settings) -> None:
        """Take other settings; what the predictor has learned stays."""
        self.prepared(settings)()

    def prepared(self, settings: Settings) -> Callable[[], None]:
        """Read other settings, which takes a while where there are thousands of tenants, so that a thread may do it;
        the function that is returned takes them, in a moment.
        """
        callers = (settings.tenants, settings.anonymous, settings.band_names, settings.gateway.listen)
        same = self._callers[0] is callers[0] and self._callers[1:] == callers[1:]
        identities = self.identities if same else Identities(settings, self.identities)
        tenants = identities.tenants
        if identities.anonymous is not None:
            tenants = (*tenants, identities.anonymous)
        bands = BandChooser(settings, tenants)

        def take() -> None:
            self.identities, self._bands, self._callers = identities, bands, callers
            self._obey_rest(settings)

        return take

    def _obey_rest(self, settings: Settings) -> None:
        self._band_names = settings.band_names
        self._max_input = tuple(band.max_input_tokens for band in settings.policy.bands.values())
        self._max_output = tuple(band.max_output_tokens for band in settings.policy.bands.values())
        self._models, self._any_model = _models(settings)
        self.model_names = tuple(model.name for model in settings.models if model.name != WILDCARD)
        only = settings.models[0] if len(settings.models) == 1 else None
        self._unnamed = (
            _Model(only.pool, None if only.name == WILDCARD else only.name) if only is not None else self._any_model
        )

    @property
    def band_names(self) -> tuple[str, ...]:
        """Names of the bands, highest first."""
        return self._band_names

    def identify(self, headers: Headers) -> Tenant | Refused:
        """Return the tenant of a request; needs no body. See ``Identities.identify``."""
        return self.identities.identify(headers)

    def classify(self, facts: Facts) -> Classified | Refused:
        """Classify a request. Never raises."""
        headers, body = facts.headers, facts.body
        tenant = facts.tenant if facts.tenant is not None else self.identities.identify(headers)
        if isinstance(tenant, Refused):
            return tenant
        name = body.model if isinstance(body.model, str) else ""
        model = self._models.get(name) or self._other_model(name)
        if isinstance(model, Refused):
            return model
        choice = self._bands.choose(tenant, headers=headers, path=facts.path, model=name, body=body)
        if isinstance(choice, Refused):
            return choice
        said = read_labels(headers, tenant, facts.fresh_id)
        if isinstance(said, Refused):
            return said
        placed = self._place(facts, tenant, pool=model.pool, band=choice.band)
        if isinstance(placed, Refused):
            return placed
        band, predicted = placed
        tier = None
        if isinstance(body.service_tier, str) and facts.route is not Route.OTHER:  # others' answers stay as they are
            tier = self._bands.tier_of(band)
        return Classified(
            tenant=tenant,
            band=band,
            band_name=self._band_names[band],
            pool=model.pool,
            model=name,
            upstream_model=model.upstream,
            flow=said.flow,
            work=predicted.work,
            predicted=predicted,
            ttl_s=said.ttl_s,
            deadline_s=said.deadline_s,
            request_id=said.request_id,
            depends_on=said.depends_on,
            tier=tier,
            max_output_tokens=self._max_output[band],
            clamped=choice.clamped,
            demoted=band != choice.band,
            language=said.language,
            idempotency_key=said.idempotency_key,
        )

    def caller_band(self, tenant: Tenant, headers: Headers, path: str) -> Choice | Refused:
        """Return the band of a caller that sends no body (it waits for another request)."""
        return self._bands.choose(tenant, headers=headers, path=path, model="", body=ParsedBody())

    def learn(self, request: Classified, *, input_tokens: int | None, output_tokens: int | None) -> None:
        """Tell the predictor what a finished request really used."""
        self.predictor.learn(request.predicted, input_tokens=input_tokens, output_tokens=output_tokens)

    def _other_model(self, name: str) -> _Model | Refused:
        """Give the model for a name that none has."""
        if not name and self._unnamed is not None:
            return self._unnamed
        if name and self._any_model is not None:
            return self._any_model
        known = ", ".join(self.model_names[:_LISTED_MODELS])
        if len(self.model_names) > _LISTED_MODELS:
            known += f" and {len(self.model_names) - _LISTED_MODELS} more (GET /v1/models)"
        if not name:
            return Refused(Reason.BAD_REQUEST, f"model: expected one of {known}; got none", "model")
        return Refused(Reason.UNKNOWN_MODEL, f"model: expected one of {known}; got {name[:128]!r}", "model")

    def _place(self, facts: Facts, tenant: Tenant, *, pool: str, band: int) -> tuple[int, Quantiles] | Refused:
        """Estimate the work in a band, and go one band lower as long as the prompt is too long for it."""
        limit = facts.body.output_limit
        while True:
            cap = self._max_output[band]
            limit_here = cap if limit is None else limit if cap is None else min(limit, cap)
            request = EstimateRequest(tenant.name, pool, band, facts.route, facts.raw, facts.body, limit_here)
            predicted = self.predictor.predict(request)
            most = self._max_input[band]
            if most is None or predicted.input_tokens <= most:
                return band, predicted
            if tenant.strict_bands or band + 1 == len(self._band_names):
                return Refused(
                    Reason.TOO_LARGE,
                    f"expected a prompt of at most {most} tokens in band {self._band_names[band]}, "
                    f"got an estimated {predicted.input_tokens}",
                )
            band += 1


def _models(settings: Settings) -> tuple[dict[str, _Model], _Model | None]:
    """Return models by every name a client may use, and the one that takes any other name, if there is one."""
    by_name: dict[str, _Model] = {}
    for model in settings.models:
        if model.name != WILDCARD:
            by_name[model.name] = _Model(model.pool, None)
            by_name |= {alias: _Model(model.pool, model.name) for alias in model.aliases}
    wildcard = next((model for model in settings.models if model.name == WILDCARD), None)
    return by_name, _Model(wildcard.pool, None) if wildcard is not None else None
