// Joins the parts: the stream feeds what is on the screen, and a watch of its own tells when the numbers are not live.

import { Bands } from "./bands.js";
import { Changes } from "./changes.js";
import { attribute, shown, text } from "./dom.js";
import { clock, seconds } from "./figures.js";
import { Knobs } from "./knobs.js";
import { Lists } from "./lists.js";
import { Modes } from "./modes.js";
import { askToken, me, onMe, setMe, signOut } from "./session.js";
import { History } from "./spark.js";
import { Stream } from "./stream.js";
import { Tiles } from "./tiles.js";
import { current, onLanguage, preferred, recall, remember, speak, t } from "./words.js";

const OLD_MS = 2000; // four frames
const VIEWS = ["watch", "knobs", "changes"];

const byId = (id) => document.getElementById(id);
const history = new History();
const modes = new Modes(toast);
const knobs = new Knobs(byId("knobs"), toast);
const changes = new Changes(byId("changes"), toast);
let watch = null;
let last = null;
let revision = "";
let refusal = null;
let toastTimer = null;

const stream = new Stream({
  hello: (hello) => { refusal = null; setMe(hello); },
  history: (all) => history.replace(all),
  point: (point) => history.add(point),
  numbers: (numbers) => take(numbers),
}, (status, waitMs) => {
  refusal = { status, until: performance.now() + waitMs };
  if (status !== 429) askToken(() => stream.restart());
});

function take(numbers) {
  last = numbers;
  if (numbers.revision !== revision) {
    revision = numbers.revision;
    refresh();
  }
  show();
}

function show() {
  pulse();
  if (last === null || last.fault) return;
  if (watch === null) return;
  modes.show(last);
  if (!byId("watch").hidden) {
    watch.tiles.show(last);
    watch.bands.show(last, history);
    watch.lists.show(last);
  }
}

/** Say how live the numbers are. Called with each frame, and by a timer of its own when none comes. */
function pulse() {
  const age = stream.age();
  const old = age === null || age > OLD_MS;
  const fault = !old && last?.fault;
  document.body.classList.toggle("old", old || Boolean(fault));
  attribute(byId("pulse"), "class", old || fault ? "pulse old" : "pulse");
  text(byId("pulse"), old ? t(age === null ? "connecting" : "old") : t("live", { at: clock(last.at_utc) }));
  const words = fault ? [`${t("fault")}: ${last.fault}`] : [t("stale"), why(age)];
  const alarm = (old && (age !== null || performance.now() > 3000)) || Boolean(fault);
  shown(byId("stale"), alarm);
  text(byId("stale"), alarm ? `✖ ${words.filter(Boolean).join(" · ")}` : "");
}

function why(age) {
  if (refusal?.status === 429) return t("stale_wait", { age: seconds(Math.max(0, Math.ceil((refusal.until - performance.now()) / 1000))) });
  if (refusal !== null) return t("stale_token");
  return age === null ? t("stale_never") : t("stale_age", { age: seconds(Math.floor(age / 1000)) });
}

function toast(words) {
  text(byId("toast"), words);
  shown(byId("toast"), true);
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => shown(byId("toast"), false), 5000);
}

/** Show one view; the watch is the first. */
function go() {
  const name = VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "watch";
  for (const view of VIEWS) shown(byId(view), view === name);
  for (const place of [window, byId("main")]) place.scrollTo(0, 0);
  for (const link of document.querySelectorAll("[data-view]")) attribute(link, "aria-current", link.dataset.view === name ? "page" : null);
  refresh();
  show();
}

/** Load anew what is not in the stream, where it is on the screen. */
function refresh() {
  if (me === null) return;
  if (!byId("knobs").hidden) knobs.load();
  if (!byId("changes").hidden) changes.load();
}

/** Build what has words in it, in the language of now. */
function build() {
  watch = { tiles: new Tiles(), bands: new Bands(), lists: new Lists() };
  byId("watch").replaceChildren(watch.tiles.element, watch.bands.element, watch.lists.element);
  text(byId("language"), t("other_language"));
  tools();
  refresh();
  show();
}

function tools() {
  const who = byId("who");
  shown(who, me !== null && me.tokens);
  text(who, me?.session ? t("sign_out", { who: me.who }) : t("sign_in"));
  text(byId("theme"), "◐");
  for (const name of ["aria-label", "title"]) attribute(byId("theme"), name, t("theme"));
}

function theme() {
  return document.documentElement.dataset.theme ?? "dark";
}

function paint(name) {
  document.documentElement.dataset.theme = name;
  tools();
}

byId("language").addEventListener("click", () => speak(current() === "en" ? "zh" : "en"));
byId("theme").addEventListener("click", () => {
  paint(theme() === "dark" ? "light" : "dark");
  remember("theme", theme());
});
byId("who").addEventListener("click", () => {
  if (me?.session) signOut(() => stream.restart());
  else askToken(() => stream.restart());
});
onMe(() => {
  tools();
  knobs.operable();
  refresh();
});
onLanguage(build);
window.addEventListener("hashchange", go);
setInterval(pulse, 250);

const light = window.matchMedia("(prefers-color-scheme: light)").matches;
paint(recall("theme") ?? (light ? "light" : "dark"));
speak(preferred());
go();
stream.open();
