"""From a request to all that the scheduler needs of it, or to its refusal. Pure; built from the settings.

The order of the questions is that of SPEC §1 and of what may be told to whom: who calls comes first, so that nobody
without a key learns which models or bands there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidegate.classify.bands import BandChooser, Choice
from tidegate.classify.body import output_limit
from tidegate.classify.estimates import LearnedPredictor, Predictor, Quantiles
from tidegate.classify.fields import ParsedBody
from tidegate.classify.headers import TOLD
from tidegate.classify.identity import Headers, Identities, Shown, Tenant
from tidegate.classify.labels import Labels, read_labels
from tidegate.classify.outcome import Refused
from tidegate.classify.route import Route
from tidegate.config import WILDCARD
from tidegate.core import Reason
from tidegate.core.compiling import mypyc_attr

if TYPE_CHECKING:
    from tidegate.config import Settings

_LISTED_MODELS: Final = 20
_OTHER: Final = Route.OTHER
_NONE: Final[Headers] = {}


@mypyc_attr(acyclic=True, free_list_len=1)
class Facts:
    """What is known of a request once its body is there.

    Attributes:
        route: the endpoint.
        path: request path without the query.
        headers: by lower-case name, as ``by_name`` gives them.
        raw: the body as it came.
        body: what ``parse_body`` made of it.
        fresh_id: a new request id, used when the client gave no usable one.
        tenant: result of an earlier ``identify``, which is then not repeated.
        quiet: that no header says what shall be done is known (``HeaderNames.quiet``).
        ascii_only: whether ``raw`` is ASCII alone, where that is known.
    """

    __slots__ = ("ascii_only", "body", "fresh_id", "headers", "path", "quiet", "raw", "route", "tenant")

    def __init__(
        self,
        route: Route,
        path: str,
        headers: Headers,
        raw: bytes,
        body: ParsedBody,
        fresh_id: str,
        tenant: Tenant | None = None,
        *,
        quiet: bool = False,
        ascii_only: bool | None = None,
    ) -> None:
        self.route: Final = route
        self.path: Final = path
        self.headers: Final = headers
        self.raw: Final = raw
        self.body: Final = body
        self.fresh_id: Final = fresh_id
        self.tenant: Final = tenant
        self.quiet: Final = quiet
        self.ascii_only: Final = ascii_only


@mypyc_attr(acyclic=True, free_list_len=1)
class Classified:
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

    __slots__ = (
        "_said",
        "band",
        "band_name",
        "clamped",
        "deadline_s",
        "demoted",
        "depends_on",
        "flow",
        "idempotency_key",
        "language",
        "max_output_tokens",
        "model",
        "pool",
        "predicted",
        "request_id",
        "tenant",
        "tier",
        "ttl_s",
        "upstream_model",
        "work",
    )

    def __init__(
        self,
        *,
        tenant: Tenant,
        band: int,
        band_name: str,
        pool: str,
        model: str,
        upstream_model: str | None,
        predicted: Quantiles,
        said: Labels,
        fresh_id: str,
        tier: str | None,
        max_output_tokens: int | None,
        clamped: bool,
        demoted: bool,
    ) -> None:
        self.tenant: Final = tenant
        self.band: Final = band
        self.band_name: Final = band_name
        self.pool: Final = pool
        self.model: Final = model
        self.upstream_model: Final = upstream_model
        self.flow: Final[str] = said.flow or tenant.name
        self.work: Final = predicted.work
        self.predicted: Final = predicted
        self.ttl_s: Final = said.ttl_s
        self.deadline_s: Final = said.deadline_s
        self.request_id: Final[str] = said.request_id or fresh_id
        self.depends_on: Final = said.depends_on
        self.tier: Final = tier
        self.max_output_tokens: Final = max_output_tokens
        self.clamped: Final = clamped
        self.demoted: Final = demoted
        self.language: Final = said.language
        self.idempotency_key: Final = said.idempotency_key
        self._said: Final = said

    def instead(self, pool: str, model: str) -> Classified:
        """Return the same request as another model is asked, which teaches nothing of how long answers are."""
        return Classified(
            tenant=self.tenant,
            band=self.band,
            band_name=self.band_name,
            pool=pool,
            model=self.model,
            upstream_model=model,
            predicted=self.predicted.forgetful(),
            said=self._said,
            fresh_id=self.request_id,
            tier=self.tier,
            max_output_tokens=self.max_output_tokens,
            clamped=self.clamped,
            demoted=self.demoted,
        )


class _Model:
    __slots__ = ("pool", "upstream")

    def __init__(self, pool: str, upstream: str | None) -> None:
        self.pool: Final = pool
        self.upstream: Final = upstream


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

    def identify(self, headers: Headers, shown: Shown | None = None) -> Tenant | Refused:
        """Return the tenant of a request; needs no body. See ``Identities.identify``."""
        return self.identities.identify(headers, shown)

    def classify(self, facts: Facts) -> Classified | Refused:
        """Classify a request. Never raises."""
        headers, body = facts.headers, facts.body
        tenant = facts.tenant if facts.tenant is not None else self.identities.identify(headers)
        if isinstance(tenant, Refused):
            return tenant
        named = body.model
        name = named if isinstance(named, str) else ""
        model = self._models.get(name)
        if model is None:
            other = self._other_model(name)
            if isinstance(other, Refused):
                return other
            model = other
        told = _NONE if facts.quiet or TOLD.isdisjoint(headers) else headers  # most say nothing
        choice = self._bands.choose(tenant, headers=headers, words=told, path=facts.path, model=name, body=body)
        if isinstance(choice, Refused):
            return choice
        said = read_labels(told, tenant)
        if isinstance(said, Refused):
            return said
        band, asked = choice.band, output_limit(body)
        while True:
            cap = self._max_output[band]
            limit = asked if asked is not None and (cap is None or asked < cap) else cap
            predicted = self.predictor.predict(
                tenant.name,
                model.pool,
                band,
                route=facts.route,
                raw=facts.raw,
                body=body,
                limit=limit,
                ascii_only=facts.ascii_only,
            )
            most = self._max_input[band]
            if most is None or predicted.input_tokens <= most:
                break
            if tenant.strict_bands or band + 1 == len(self._band_names):
                return self._too_large(most, band, predicted)
            band += 1  # one band lower as long as the prompt is too long for it
        tier = None
        if isinstance(body.service_tier, str) and facts.route is not _OTHER:  # others' answers stay as they are
            tier = self._bands.tier_of(band)
        return Classified(
            tenant=tenant,
            band=band,
            band_name=self._band_names[band],
            pool=model.pool,
            model=name,
            upstream_model=model.upstream,
            predicted=predicted,
            said=said,
            fresh_id=facts.fresh_id,
            tier=tier,
            max_output_tokens=self._max_output[band],
            clamped=choice.clamped,
            demoted=band != choice.band,
        )

    def caller_band(self, tenant: Tenant, headers: Headers, path: str) -> Choice | Refused:
        """Return the band of a caller that sends no body (it waits for another request)."""
        return self._bands.choose(tenant, headers=headers, words=headers, path=path, model="", body=ParsedBody())

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

    def _too_large(self, most: int, band: int, predicted: Quantiles) -> Refused:
        return Refused(
            Reason.TOO_LARGE,
            f"expected a prompt of at most {most} tokens in band {self._band_names[band]}, "
            f"got an estimated {predicted.input_tokens}",
        )


def _models(settings: Settings) -> tuple[dict[str, _Model], _Model | None]:
    """Return models by every name a client may use, and the one that takes any other name, if there is one."""
    by_name: dict[str, _Model] = {}
    for model in settings.models:
        if model.name != WILDCARD:
            by_name[model.name] = _Model(model.pool, None)
            by_name |= {alias: _Model(model.pool, model.name) for alias in model.aliases}
    wildcard = next((model for model in settings.models if model.name == WILDCARD), None)
    return by_name, _Model(wildcard.pool, None) if wildcard is not None else None
