// The first look: are the transactions safe, what waits, who is refused and why, how full are the engines.

import { attribute, fill, h, meter, shown, text } from "./dom.js";
import { NONE, count, percent, seconds } from "./figures.js";
import { t } from "./words.js";

const SIGNS = { safe: "✔", strained: "▲", unsafe: "✖", idle: "○" };

function tile(id, title) {
  const head = h("h2", {}, title);
  const big = h("p", { class: "big", id: `${id}-big` });
  const say = h("p", { class: "say", id: `${id}-say` });
  return { element: h("article", { class: "card tile", id }, head, big, say), head, big, say };
}

export class Tiles {
  constructor() {
    this.safe = tile("tile-safe", "");
    this.waiting = tile("tile-waiting", t("waiting"));
    this.refused = tile("tile-refused", t("refused"));
    this.engines = tile("tile-engines", t("engines"));
    this.split = h("p", { class: "split" });
    this.waiting.say.before(this.split);
    this.whom = h("p", { class: "split" });
    this.refused.say.before(this.whom);
    this.full = meter();
    this.engines.say.before(this.full);
    attribute(this.safe.big, "aria-live", "polite");
    this.element = h("div", { class: "tiles" }, this.safe.element, this.waiting.element, this.refused.element, this.engines.element);
  }

  show(numbers) {
    this.transactions(numbers);
    this.queue(numbers);
    this.refusals(numbers);
    this.seats(numbers);
  }

  transactions({ verdict, bands, not_ready: why }) {
    const top = bands[0];
    text(this.safe.head, t("transactions", { band: top.name }));
    attribute(this.safe.element, "data-state", verdict.state);
    text(this.safe.big, `${SIGNS[verdict.state]} ${t(verdict.state)}`);
    const words = verdict.findings.map(({ code, number }) => t(`find_${code}`, { n: figure(code, number), why: t(why === "draining" ? "reason_draining" : "reason_no_backend") }));
    if (!words.length) words.push(quiet(verdict.state, top));
    text(this.safe.say, words.join(" · "));
  }

  queue({ queued, parked, bands }) {
    text(this.waiting.big, count(queued));
    this.divide(this.split, bands.map((band) => [band.name, band.depth]));
    const oldest = Math.max(...bands.map((band) => band.oldest_s));
    const words = [queued ? t("waiting_say", { age: seconds(oldest) }) : t("waiting_none")];
    if (parked) words.push(t("parked", { n: parked }));
    text(this.waiting.say, words.join(" · "));
  }

  /** Write a number of each band. */
  divide(element, rows) {
    fill(element, rows.join(), () => rows.map(([name, number], index) =>
      h("span", {}, h("span", { class: `band-sign sign-${index} band-${index}` }), `${name} `, h("b", {}, count(number)))));
  }

  refusals({ bands, storm }) {
    const rate = bands.reduce((sum, band) => sum + band.refused_per_s, 0);
    const reasons = {};
    for (const band of bands) {
      for (const [reason, number] of Object.entries(band.refusals)) reasons[reason] = (reasons[reason] ?? 0) + number;
    }
    const sorted = Object.entries(reasons).sort((one, other) => other[1] - one[1]);
    const total = sorted.reduce((sum, [, number]) => sum + number, 0);
    fill(this.refused.big, `${count(rate)}${t("per_s")}`, () => [count(rate), h("small", {}, ` ${t("per_s")}`)]);
    const names = sorted.slice(0, 2).map(([reason, number]) => `${t(`reason_${reason}`)} ${count(number)}`).join(t("comma"));
    this.divide(this.whom, bands.map((band) => [band.name, Object.values(band.refusals).reduce((sum, number) => sum + number, 0)]));
    const words = [total ? t("refused_say", { n: count(total), reasons: names }) : t("refused_none")];
    if (storm) words.push(t("storm"));
    text(this.refused.say, words.join(" · "));
    attribute(this.refused.big, "class", rate > 0 ? "big warn" : "big");
  }

  seats({ seats, running, backends }) {
    const part = seats ? running / seats : 0;
    fill(this.engines.big, `${running}/${seats}`, () => [seats ? percent(part) : NONE]);
    const free = backends.filter((row) => row.kv_free !== null).map((row) => row.kv_free);
    const words = [t("engines_say", { n: count(running), all: count(seats), kv: free.length ? percent(Math.max(0, Math.min(...free))) : NONE })];
    const down = backends.filter((row) => !row.up).length;
    if (down) words.unshift(t("engines_down", { n: down, all: backends.length }));
    text(this.engines.say, words.join(" · "));
    attribute(this.engines.say, "class", down ? "say bad" : "say");
    this.full.set(part, { level: part > 1 ? "over" : "", label: `${running} / ${seats}` });
    shown(this.full, seats > 0);
  }
}

function figure(code, number) {
  if (code === "late") return percent(number, number < 0.1 ? 1 : 0);
  return code === "waits" ? seconds(number) : count(number);
}

function quiet(state, band) {
  if (state === "idle") return t("say_idle");
  const values = { p99: seconds(band.ttft_p99_s), target: seconds(band.target_s) };
  return t(band.target_s === null ? "say_safe_open" : "say_safe", values);
}
