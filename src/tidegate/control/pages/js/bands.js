// One row per band: how deep, how long, how fast, its part against what is promised, its oldest wait against its bound.

import { attribute, fill, h, meter, text } from "./dom.js";
import { NONE, count, percent, seconds } from "./figures.js";
import { draw, spark } from "./spark.js";
import { t } from "./words.js";

const HEADS = ["band", "depth", "minutes", "running", "wait", "ttft", "tokens", "share", "starvation", "refusals"];
const NUMBERS = new Set(["depth", "running", "tokens", "refusals"]);

export class Bands {
  constructor() {
    this.body = h("tbody");
    const heads = HEADS.map((key) => h("th", { scope: "col", class: NUMBERS.has(key) ? "num" : null }, t(key)));
    this.note = h("p", { class: "legend" });
    this.element = h("section", { class: "card bands", "aria-label": t("bands") },
      h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ...heads)), this.body)), this.note);
    this.rows = [];
  }

  show(numbers, history) {
    while (this.rows.length < numbers.bands.length) {
      const row = new Row(this.rows.length);
      this.rows.push(row);
      this.body.append(row.element);
    }
    numbers.bands.forEach((band, index) => this.rows[index].show(band, history));
    const values = { window: numbers.window_s, rate: numbers.rate_s, service: seconds(numbers.service_s) };
    text(this.note, t("note", values));
  }
}

class Row {
  constructor(index) {
    const cell = (key, ...content) => h("td", { "data-head": t(key), "data-key": key, class: NUMBERS.has(key) ? "num" : null }, ...content);
    this.sign = h("span", { class: `band-sign sign-${index} band-${index}` });
    this.name = h("span");
    this.gates = h("small");
    this.spark = spark(`band-${index}`);
    this.peak = h("small");
    this.cells = Object.fromEntries(["depth", "running", "wait", "ttft", "tokens", "refusals"].map((key) => [key, [h("span"), h("small")]]));
    this.share = meter();
    this.shareWords = h("small");
    this.oldest = meter();
    this.oldestWords = h("small");
    const plain = (key) => cell(key, ...this.cells[key]);
    this.element = h("tr", {},
      h("td", { class: "name" }, this.sign, this.name, this.gates), plain("depth"), cell("minutes", this.spark, this.peak), plain("running"),
      plain("wait"), plain("ttft"), plain("tokens"), cell("share", this.share, this.shareWords),
      cell("starvation", this.oldest, this.oldestWords), plain("refusals"));
    this.drawn = -1;
  }

  show(band, history) {
    text(this.name, band.name);
    attribute(this.element, "data-band", band.name);
    this.put("depth", count(band.depth), "");
    this.put("running", count(band.running), "");
    this.put("wait", `${seconds(band.wait_p50_s)} / ${seconds(band.wait_p99_s)}`, "");
    this.put("ttft", `${seconds(band.ttft_p50_s)} / ${seconds(band.ttft_p99_s)}`, this.target(band));
    this.put("tokens", count(band.written_per_s), band.read_per_s ? t("in_per_s", { n: count(band.read_per_s) }) : "");
    this.put("refusals", count(band.refused_per_s), reasons(band.refusals));
    const late = band.target_s !== null && band.ttft_p99_s > band.target_s;
    attribute(this.cells.ttft[0], "class", late ? "bad" : null);
    this.shares(band);
    this.oldestWait(band);
    this.stops(band);
    if (this.drawn !== history.number) {
      this.drawn = history.number;
      const peak = Math.max(0, ...(history.series[`${band.name}.depth`] ?? []));
      text(this.peak, peak ? t("peak", { n: count(peak) }) : "");
      draw(this.spark, history.series[`${band.name}.depth`], history.points, `${band.name} ${t("depth")}, ${t("minutes")}`);
    }
  }

  put(key, value, small) {
    const [big, under] = this.cells[key];
    text(big, value);
    text(under, small);
  }

  target(band) {
    if (band.target_s === null) return "";
    const within = band.within === null ? "" : ` · ${t("within", { n: percent(band.within, band.within < 1 && band.within > 0.9 ? 1 : 0) })}`;
    return `${t("target", { n: seconds(band.target_s) })}${within}`;
  }

  shares(band) {
    const wanted = percent(band.share_wanted);
    const label = t("share_label", { n: percent(band.share), wanted });
    this.share.set(band.share, { mark: band.share_wanted, label });
    text(this.shareWords, `${percent(band.share)} · ${t(band.share_kind === "share" ? "shared" : "promised", { n: wanted })}`);
  }

  oldestWait(band) {
    const part = band.bound_s ? band.oldest_s / band.bound_s : 0;
    const level = part > 1 ? "over" : part > 0.5 ? "near" : "";
    const bound = seconds(band.bound_s);
    this.oldest.set(part, { level, label: t("oldest_label", { n: seconds(band.oldest_s), bound }) });
    const words = [seconds(band.oldest_s), band.next_s === null ? t("bound_ever", { n: bound }) : t("bound", { n: bound })];
    text(this.oldestWords, words.join(" · "));
    attribute(this.oldestWords, "title", band.next_s === null ? null : t("next", { n: seconds(band.next_s) }));
  }

  stops(band) {
    const gates = band.gates.filter((gate, index) => band.gates.findIndex((other) => other.kind === gate.kind) === index);
    fill(this.gates, `${document.documentElement.lang}${gates.map((gate) => gate.kind).join()}`, () =>
      gates.map((gate) => h("span", { class: gate.gated && gate.kind !== "no_seat" ? "gate" : "gate held", title: gate.pool }, t(`gate_${gate.kind}`))));
  }
}

function reasons(refusals) {
  const sorted = Object.entries(refusals).sort((one, other) => other[1] - one[1]);
  return sorted.length ? sorted.slice(0, 2).map(([reason, number]) => `${reason} ${count(number)}`).join(", ") : "";
}
