// Knobs: every field is judged by the gateway itself, before (preview) and when it is applied. Nothing is checked here.

import { attribute, fill, h, shown, text } from "./dom.js";
import { count, seconds } from "./figures.js";
import { inChinese } from "./refused-zh.js";
import { api, readOnlyReason } from "./session.js";
import { current, t } from "./words.js";

const GLOBAL = ["discipline", "overtake_cap", "queue_capacity"];
const OF_BANDS = ["weight", "aging_per_ms", "share", "floor", "ceiling", "reserve", "kv_watermark", "kv_resume", "capacity", "ttl", "promote_after", "ttft_slo"];
const CHOICES = { discipline: ["aging", "weighted", "strict"] };
const PAUSE_MS = 350;

export class Knobs {
  /** `toast(words)` tells what was done. */
  constructor(section, toast) {
    this.section = section;
    this.toast = toast;
    this.fields = new Map(); // path of the setting to {input, error, was}
    this.loaded = null;
    this.timer = null;
    this.asked = 0;
  }

  /** Build the form from the policy in force; what somebody has typed stays. */
  async load() {
    const typed = new Map([...this.fields].filter(([, field]) => this.isChanged(field)).map(([path, field]) => [path, field.input.value]));
    try {
      [this.policy, this.backends] = await Promise.all([api("GET", "/admin/policy"), api("GET", "/admin/backends")]);
    } catch (error) {
      this.section.replaceChildren(h("p", { class: "error" }, t("failed", { why: error.message })));
      return;
    }
    this.loaded = document.documentElement.lang;
    this.fields.clear();
    this.build();
    for (const [path, value] of typed) if (this.fields.has(path)) this.fields.get(path).input.value = value;
    if (typed.size) this.toast(t("changed_elsewhere"));
    this.touched();
    this.operable();
  }

  build() {
    const bands = Object.keys(this.policy.bands);
    const help = (key) => h("small", {}, t(key === "share" ? "share_knob" : key));
    const global = GLOBAL.map((key) => h("tr", {}, h("th", { scope: "row" }, key, help(key)), this.cell(`policy.${key}`, this.policy[key], key)));
    const rows = OF_BANDS.map((key) => h("tr", {}, h("th", { scope: "row" }, key, help(key)),
      ...bands.map((band) => this.cell(`policy.bands.${band}.${key}`, this.policy.bands[band][key], key, `${band} ${key}`))));
    const seats = this.backends.models.flatMap((model, index) => model.backends.map((backend, number) =>
      h("tr", {}, h("th", { scope: "row" }, backend.name, h("small", {}, model.name)), this.cell(`models[${index}].backends[${number}].seats`, backend.seats, "seats", `${backend.name} seats`))));
    this.why = h("p", { class: "note", id: "knobs-why", hidden: true });
    this.apply = h("button", { type: "submit", class: "main", id: "apply" }, t("apply"));
    this.discard = h("button", { type: "button", id: "discard", onclick: () => this.reset() }, t("discard"));
    this.whatIf = h("button", { type: "button", id: "what-if", onclick: () => this.preview({ whatIf: true }) }, t("what_if"));
    this.problem = h("p", { class: "error", role: "alert" });
    this.side = h("div", { id: "preview" });
    const table = (heads, lines) => h("table", { class: "knobs" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("knob")), ...heads.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, ...lines));
    this.section.replaceChildren(this.why, h("form", { class: "knobs-grid", autocomplete: "off", onsubmit: (event) => this.submit(event), oninput: () => this.touched() },
      h("div", {},
        h("section", { class: "card" }, h("h2", {}, t("bands")), table(bands, rows)),
        h("section", { class: "card" }, h("h2", {}, t("knobs_policy")), table([""], global)),
        h("section", { class: "card" }, h("h2", {}, t("knobs_seats")), table([t("seats_help")], seats))),
      h("div", { class: "side card" }, h("h2", {}, t("preview")), this.side, this.problem,
        h("div", { class: "row" }, this.apply, this.whatIf, this.discard))));
  }

  cell(path, value, key, label = key) {
    const was = value === null ? "" : String(value);
    const id = `knob-${path}`;
    const error = h("p", { class: "knob-error", id: `${id}-error`, role: "alert" });
    const plain = { class: "knob", id, name: path, "aria-label": label, "aria-describedby": error.id };
    const input = key in CHOICES
      ? h("select", plain, ...CHOICES[key].map((choice) => h("option", { selected: choice === was }, choice)))
      : h("input", { ...plain, value: was, placeholder: "–", spellcheck: "false" });
    this.fields.set(path, { input, error, was });
    return h("td", {}, input, error);
  }

  /** Lock or unlock everything, with the reason. */
  operable() {
    if (this.loaded === null) return;
    const reason = readOnlyReason();
    shown(this.why, reason !== "");
    text(this.why, reason);
    for (const { input } of this.fields.values()) input.disabled = reason !== "";
    this.buttons();
  }

  isChanged({ input, was }) {
    return input.value.trim() !== was;
  }

  changed(prefix) {
    return [...this.fields].filter(([path, field]) => path.startsWith(prefix) && this.isChanged(field));
  }

  buttons() {
    const locked = readOnlyReason() !== "";
    const any = this.changed("").length > 0;
    this.apply.disabled = locked || !any;
    this.discard.disabled = !any;
    this.whatIf.disabled = locked || this.changed("policy.").length === 0;
  }

  touched() {
    for (const field of this.fields.values()) field.input.classList.toggle("changed", this.isChanged(field));
    this.buttons();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.preview(), PAUSE_MS);
  }

  reset() {
    for (const field of this.fields.values()) field.input.value = field.was;
    this.touched();
  }

  /** The changed fields of the policy as a JSON merge patch. */
  patch() {
    const patch = {};
    for (const [path, { input }] of this.changed("policy.")) {
      const parts = path.split(".").slice(1);
      let place = patch;
      for (const part of parts.slice(0, -1)) place = place[part] ??= {};
      place[parts.at(-1)] = input.value.trim() === "" ? null : input.value.trim();
    }
    return patch;
  }

  async preview({ whatIf = false } = {}) {
    const asked = (this.asked += 1);
    this.complain([]);
    text(this.problem, "");
    if (!this.changed("policy.").length) {
      const seats = this.changed("models[");
      fill(this.side, `seats${document.documentElement.lang}${seats.map(([path, { input }]) => path + input.value)}`, () =>
        seats.length ? [changeTable(seats.map(([path, { input, was }]) => ({ field: path, from: was, to: input.value.trim() })))] : [h("p", { class: "soft" }, t("nothing_changed"))]);
      return;
    }
    if (whatIf) this.side.append(h("p", { class: "soft", role: "status" }, t("computing")));
    try {
      const found = await api("POST", "/admin/policy/preview", whatIf ? { policy: this.patch(), what_if: true } : { policy: this.patch() });
      if (asked !== this.asked) return;
      this.complain(found.errors);
      delete this.side.dataset.key;
      this.side.replaceChildren(...(found.valid ? this.judged(found, whatIf) : [h("p", { class: "bad" }, t("invalid"))]));
    } catch (error) {
      if (asked === this.asked) text(this.problem, t("failed", { why: error.message }));
    }
  }

  judged(found, whatIf) {
    const bound = (value) => (value === null ? t("for_ever") : seconds(value));
    const rows = Object.entries(found.bounds).map(([band, { now_s: now, then_s: then }]) =>
      h("tr", {}, h("th", { scope: "row" }, band), h("td", { class: "num" }, bound(now)), h("td", { class: `num ${now === then ? "" : "moved"}` }, bound(then))));
    return [
      changeTable(found.changes),
      h("h2", {}, t("bound_next")),
      h("table", { id: "bounds" }, h("thead", {}, h("tr", {}, h("th", {}, ""), h("th", { class: "num" }, t("now")), h("th", { class: "num" }, t("then")))), h("tbody", {}, ...rows)),
      found.assumed ? h("p", { class: "legend" }, t("assumed", { n: seconds(found.assumed.service_s) })) : null,
      whatIf ? whatIfTable(found.what_if) : null,
    ].filter((each) => each !== null);
  }

  /** Put each problem at its field; what has no field here goes below. */
  complain(problems) {
    for (const { input, error } of this.fields.values()) {
      text(error, "");
      attribute(input, "aria-invalid", null);
    }
    const rest = [];
    for (const problem of problems) {
      const field = this.fields.get(problem.field);
      const chinese = current() === "zh" ? inChinese(problem) : null;
      const words = chinese ?? problem.message.replace(`${problem.field}: `, "");
      if (field === undefined) {
        rest.push(chinese === null ? problem.message : `${problem.field}：${chinese}`);
        continue;
      }
      text(field.error, field.error.textContent ? `${field.error.textContent}; ${words}` : words);
      attribute(field.input, "aria-invalid", "true");
    }
    text(this.problem, rest.join("; "));
    return problems.length;
  }

  async submit(event) {
    event.preventDefault();
    clearTimeout(this.timer);
    this.asked += 1;
    const seats = this.changed("models[");
    const policy = this.changed("policy.").length;
    this.apply.disabled = true;
    try {
      let done = 0;
      if (policy) done += (await api("PATCH", "/admin/policy", this.patch())).changes.length;
      if (seats.length) done += (await api("PUT", "/admin/backends", this.seated(seats))).changes.length;
      for (const field of this.fields.values()) field.input.value = field.was; // load keeps what differs from it
      await this.load();
      this.toast(t("applied", { n: done }));
    } catch (error) {
      if (!this.complain(error.problems ?? [])) text(this.problem, t("failed", { why: error.message }));
      this.buttons();
    }
  }

  /** All backends, with the changed seats. */
  seated(changed) {
    const models = structuredClone(this.backends.models);
    for (const [path, { input }] of changed) {
      const [, model, backend] = path.match(/^models\[(\d+)\]\.backends\[(\d+)\]/);
      models[model].backends[backend].seats = input.value.trim();
    }
    return { models };
  }
}

export function changeTable(changes) {
  const words = (value) => (value === null || value === "" ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
  return h("table", { class: "diff" }, h("tbody", {}, ...changes.map((change) =>
    h("tr", {}, h("td", {}, change.field ?? change.what), h("td", {}, h("span", { class: "from" }, words(change.from)), " → ", h("span", { class: "to" }, words(change.to)))))));
}

/** Both runs of the simulator beside each other; `found` is what the gateway says of them. */
function whatIfTable(found) {
  if (!found?.bands) return h("p", { class: "soft", id: "what-if-result" }, found?.error ?? t("what_if_none"));
  const total = (value) => (typeof value === "object" && value !== null ? Object.values(value).reduce((sum, each) => sum + each, 0) : value);
  const shapes = [["answered", count], ["refused", count], ["wait_p99_s", seconds], ["ttft_p99_s", seconds]];
  const rows = Object.entries(found.bands).flatMap(([band, { now, then }]) => shapes.map(([key, shape], index) => {
    const [before, after] = [shape(total(now[key])), shape(total(then[key]))];
    return h("tr", {}, h("th", { scope: "row" }, index ? "" : band), h("td", {}, t(key === "refused" ? "by_refusals" : key)), h("td", { class: "num" }, before), h("td", { class: `num ${before === after ? "" : "moved"}` }, after));
  }));
  return h("div", { id: "what-if-result" },
    h("h2", {}, t("what_if_of", { n: count(found.requests), span: seconds(found.span_s) })),
    h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, ""), h("th", {}, ""), h("th", { class: "num" }, t("now")), h("th", { class: "num" }, t("then")))), h("tbody", {}, ...rows)),
    h("p", { class: "legend" }, t("what_if_note", { profile: found.profile })));
}
