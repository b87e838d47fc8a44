// The switch: one press, one confirmation that says what will happen, and a banner on every screen while a mode is on.

import { attribute, fill, h, shown, text } from "./dom.js";
import { clock, count, countdown } from "./figures.js";
import { api, readOnlyReason } from "./session.js";
import { t } from "./words.js";

const SWITCH = "transactions_only";
const NORMAL = "normal";
const CHOICES = [["15min", 15, "min"], ["30min", 30, "min"], ["1h", 1, "h"], ["4h", 4, "h"], [null, null, null]];
const DEFAULT = "30min";
const WOULD = { held: "would_held", kv: "would_kv", reordered: "would_reordered" }; // what is no refusal

export class Modes {
  /** `toast(words)` tells what was done. */
  constructor(toast) {
    this.toast = toast;
    this.numbers = null;
    this.dialog = null;
    this.press = h("button", { type: "button", class: "danger", id: "switch", onclick: () => this.ask(SWITCH) });
    this.others = h("button", { type: "button", id: "other-modes", onclick: () => this.list() });
    this.why = h("span", { class: "why", id: "switch-why" });
    document.getElementById("switch-bar").append(this.press, this.others, this.why);
    this.banner = document.getElementById("mode");
  }

  show(numbers) {
    this.numbers = numbers;
    const reason = readOnlyReason();
    const on = numbers.mode.name;
    text(this.press, on === SWITCH ? `⚑ ${t("switch")} · ${t("in_force")}` : `⚑ ${t("switch")}`);
    text(this.others, t("other_modes"));
    text(this.why, reason);
    attribute(this.why, "title", reason || null);
    this.press.disabled = reason !== "" || on === SWITCH;
    this.others.disabled = reason !== "";
    this.showBanner(numbers.mode, reason);
    if (this.dialog !== null) this.dialog.refresh?.();
  }

  showBanner(mode, reason) {
    shown(this.banner, mode.name !== NORMAL);
    if (mode.name === NORMAL) return;
    const left = mode.reverts_in_s === null ? t("mode_stays") : t("mode_reverts", { to: mode.reverts_to, left: countdown(mode.reverts_in_s) });
    const key = [document.documentElement.lang, mode.name, mode.by, mode.since_utc, reason].join("|");
    fill(this.banner, key, () => [
      h("span", {}, `⚑ ${t("mode_on", { name: mode.name })}`), h("span", { class: "soft" }, t("mode_by", { who: mode.by, at: clock(mode.since_utc) })),
      h("span", { class: "soft", id: "mode-left" }), h("span", { class: "soft", id: "mode-would" }),
      h("button", { type: "button", id: "back", disabled: reason !== "", title: reason || null, onclick: () => this.ask(NORMAL) }, t("switch_back")),
    ]);
    text(document.getElementById("mode-left"), left);
    const would = Object.entries(this.numbers.would).map(([reason, number]) => `${t(WOULD[reason] ?? `reason_${reason}`)} ${count(number)}`).join(t("comma"));
    const observes = this.numbers.modes.find((each) => each.name === mode.name)?.observes;
    text(document.getElementById("mode-would"), observes && would ? t("mode_would", { reasons: would }) : "");
  }

  /** Show the list of all modes. */
  list() {
    const rows = this.numbers.modes.map(({ name }) => h("li", {},
      h("button", { type: "button", disabled: name === this.numbers.mode.name, onclick: () => { this.dialog.close(); this.ask(name); } }, name),
      name === this.numbers.mode.name ? ` ${t("in_force")}` : ""));
    this.open(t("modes"), h("ul", {}, ...rows), h("div", { class: "row" }, this.closer(t("cancel"))));
  }

  /** Ask whether to switch, with what will happen; the numbers go on counting while the question stands. */
  ask(name) {
    const effects = h("ul", { id: "effects" });
    const problem = h("p", { class: "error", role: "alert" });
    const button = h("button", { type: "button", class: name === NORMAL ? "main" : "danger", id: "confirm" }, t("do_switch"));
    const choices = CHOICES.map(([value, number, unit]) => h("label", {},
      h("input", { type: "radio", name: "revert", value: value ?? "", checked: value === DEFAULT }), ` ${value === null ? t("revert_never") : `${number} ${t(unit)}`}`));
    const revert = name === NORMAL ? null : h("fieldset", {}, h("legend", {}, t("revert")), h("div", { class: "choices" }, ...choices));
    button.addEventListener("click", async () => {
      button.disabled = true;
      const after = this.dialog.querySelector("input[name=revert]:checked")?.value;
      try {
        await api("POST", "/admin/mode", after ? { mode: name, revert_after: after } : { mode: name });
        this.dialog.close();
        this.toast(t("switched", { name }));
      } catch (error) {
        text(problem, t("failed", { why: error.message }));
        button.disabled = false;
      }
    });
    this.open(t("mode_ask", { name }), h("p", {}, t("mode_now")), effects, revert, problem, h("div", { class: "row" }, button, this.closer(t("cancel"))));
    this.dialog.refresh = () => {
      const words = this.effects(name);
      fill(effects, words.join("|"), () => words.map((each) => h("li", {}, each)));
    };
    this.dialog.refresh();
    button.focus();
  }

  effects(name) {
    const mode = this.numbers.modes.find((each) => each.name === name);
    if (mode === undefined) return [];
    if (mode.observes) return [t("will_observe")];
    if (name === NORMAL) return [t("will_normal")];
    if (!mode.closes.length) return [t("will_overlay")];
    const closed = mode.closes.map((each) => each.band);
    const open = this.numbers.bands.map((band) => band.name).filter((band) => !closed.includes(band));
    const requests = mode.closes.reduce((sum, each) => sum + each.requests, 0);
    const rows = mode.closes.reduce((sum, each) => sum + each.rows, 0);
    const each = mode.closes.map(({ band, requests: number }) => `${band} ${count(number)}`).join(", ");
    const words = [requests ? t("will_answer", { n: count(requests), bands: each }) : t("will_answer_none", { bands: closed.join(", ") })];
    if (this.numbers.jobs !== null) words.push(t("will_pause", { n: count(rows) }));
    words.push(t("will_admit", { bands: open.join(", "), n: count(this.numbers.running) }));
    return words;
  }

  closer(words) {
    return h("button", { type: "button", onclick: () => this.dialog.close() }, words);
  }

  open(title, ...content) {
    this.dialog?.close();
    const dialog = h("dialog", { "aria-labelledby": "mode-title" }, h("h2", { id: "mode-title" }, title), ...content);
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (this.dialog === dialog) this.dialog = null;
    });
    this.dialog = dialog;
    document.body.append(dialog);
    dialog.showModal();
  }
}
