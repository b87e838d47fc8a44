// Who looks, and requests to the control API in his name. A token goes to the gateway once; a cookie that no script can
// read stands for it from then on.

import { h, text } from "./dom.js";
import { t } from "./words.js";

const listeners = [];

/** What the gateway said in `hello`; `null` before. */
export let me = null;

/** Call back when it is known anew who looks. */
export function onMe(listener) {
  listeners.push(listener);
}

export function setMe(hello) {
  me = hello;
  for (const listener of listeners) listener();
}

/** Why nothing may be changed here; empty when everything may. */
export function readOnlyReason() {
  if (me === null) return t("connecting");
  if (me.role === "operator") return "";
  return me.session ? t("viewer_only") : t("sign_in_first");
}

/** A refused request, with the problems of each field as the server names them. */
export class Refused extends Error {
  constructor(status, body) {
    const error = body?.error ?? {};
    super(error.message ?? `HTTP ${status}`);
    this.status = status;
    this.code = error.code ?? "";
    this.problems = error.errors ?? [];
  }
}

/** Ask the control API. Throws `Refused`, or `TypeError` when the gateway cannot be reached. */
export async function api(method, path, body) {
  const options = { method, headers: {}, cache: "no-store", credentials: "same-origin" };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  const response = await fetch(path, options);
  const answer = (response.headers.get("content-type") ?? "").includes("json") ? await response.json() : null;
  if (!response.ok) throw new Refused(response.status, answer);
  return answer;
}

let dialog = null;

/** Ask for a token and log in; `done` is called then. */
export function askToken(done) {
  if (dialog !== null) return;
  const input = h("input", { type: "password", autocomplete: "off", id: "token", size: "40", spellcheck: "false" });
  const problem = h("p", { class: "error", role: "alert" });
  const send = async (event) => {
    event.preventDefault();
    const token = input.value.trim();
    if (!token) return;
    try {
      await api("POST", "/admin/login", { token });
      dialog?.close();
      done();
    } catch (error) {
      text(problem, error.status === 401 ? t("token_wrong") : t("failed", { why: error.message }));
      input.select();
    }
  };
  dialog = h("dialog", { "aria-labelledby": "token-title" },
    h("h2", { id: "token-title" }, t("token_title")),
    h("form", { method: "dialog", onsubmit: send },
      h("p", {}, h("label", { for: "token" }, t("token_ask"))), input,
      h("p", { class: "soft" }, t("token_keep")), problem,
      h("div", { class: "row" },
        h("button", { type: "submit", class: "main" }, t("sign_in")),
        h("button", { type: "button", onclick: () => dialog.close() }, t("cancel")))));
  dialog.addEventListener("close", () => {
    dialog.remove();
    dialog = null;
  });
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
}

/** Log out. */
export async function signOut(done) {
  try {
    await api("POST", "/admin/logout", {});
  } finally {
    done();
  }
}
