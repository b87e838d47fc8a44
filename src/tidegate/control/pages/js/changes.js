// Who changed what, when, from what to what; and taking it back.

import { h, text } from "./dom.js";
import { moment } from "./figures.js";
import { changeTable } from "./knobs.js";
import { api, readOnlyReason } from "./session.js";
import { t } from "./words.js";

const PAGE = 50;

export class Changes {
  /** `toast(words)` tells what was done. */
  constructor(section, toast) {
    this.section = section;
    this.toast = toast;
    this.body = h("tbody");
    this.records = [];
  }

  async load() {
    try {
      await this.page(null);
    } catch (error) {
      this.section.replaceChildren(h("p", { class: "error" }, t("failed", { why: error.message })));
    }
  }

  async page(before) {
    const found = await api("GET", `/admin/audit?limit=${PAGE}${before === null ? "" : `&before=${before}`}`);
    this.records = before === null ? found.records : [...this.records, ...found.records];
    this.complete = found.complete ?? true;
    this.show();
  }

  show() {
    const reason = readOnlyReason();
    const heads = ["at", "who", "action", "what"].map((key) => h("th", { scope: "col" }, t(key)));
    this.body.replaceChildren(...this.records.map((record) => this.row(record, reason)));
    const last = this.records.at(-1);
    this.section.replaceChildren(h("section", { class: "card changes" }, h("h2", {}, t("audit")),
      this.records.length
        ? h("table", {}, h("thead", {}, h("tr", {}, ...heads, h("th", {}, ""))), this.body)
        : h("p", { class: "none" }, t("no_changes")),
      this.complete || !last?.id ? null : h("div", { class: "row" }, h("button", { type: "button", onclick: () => this.page(last.id) }, t("older")))));
  }

  row(record, reason) {
    const undo = record.undoable
      ? h("button", { type: "button", class: "undo", disabled: reason !== "", title: reason || null, onclick: () => this.ask(record) }, t("undo"))
      : null;
    return h("tr", { "data-record": record.id },
      h("td", {}, moment(record.at_utc)), h("td", {}, record.who), h("td", {}, record.action),
      h("td", { class: "what" }, changeTable(record.changes)), h("td", {}, undo));
  }

  ask(record) {
    const problem = h("p", { class: "error", role: "alert" });
    const force = h("label", { hidden: true }, h("input", { type: "checkbox" }), ` ${t("undo_force")}`);
    const button = h("button", { type: "button", class: "main", id: "confirm" }, t("undo"));
    const dialog = h("dialog", { "aria-labelledby": "undo-title" }, h("h2", { id: "undo-title" }, t("undo_ask")), h("p", {}, t("undo_will")),
      changeTable(record.changes.map((change) => ({ what: change.what, from: change.to, to: change.from }))), problem, force,
      h("div", { class: "row" }, button, h("button", { type: "button", onclick: () => dialog.close() }, t("cancel"))));
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        await api("POST", `/admin/audit/${record.id}/undo`, force.querySelector("input").checked ? { force: true } : {});
        dialog.close();
        this.toast(t("undone"));
        await this.load();
      } catch (error) {
        text(problem, t("failed", { why: error.message }));
        force.hidden = error.status !== 409;
        button.disabled = false;
      }
    });
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }
}
