// The page in two languages. Words of the settings file (bands, modes, knobs), and reasons in tables, stay as they are.

import { EN } from "./words-en.js";
import { ZH } from "./words-zh.js";

const ALL = { en: EN, zh: ZH };
const listeners = [];
let language = "en";

/** Words for a key; `{name}` in them is replaced. A key without words is shown as it is. */
export function t(key, values = {}) {
  const words = ALL[language][key] ?? EN[key] ?? key;
  return words.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

export function current() {
  return language;
}

/** Call back when the language changes. */
export function onLanguage(listener) {
  listeners.push(listener);
}

/** Take a language, remember it, and write it over everything that stands in the page itself. */
export function speak(name) {
  language = name in ALL ? name : "en";
  remember("language", language);
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const element of document.querySelectorAll("[data-t]")) element.textContent = t(element.dataset.t);
  for (const element of document.querySelectorAll("[data-label]")) element.setAttribute("aria-label", t(element.dataset.label));
  for (const listener of listeners) listener();
}

/** The language of the last visit, or the browser's. */
export function preferred() {
  const kept = recall("language");
  if (kept in ALL) return kept;
  return navigator.languages.some((name) => name.toLowerCase().startsWith("zh")) ? "zh" : "en";
}

export function remember(key, value) {
  try {
    localStorage.setItem(`tidegate.${key}`, value);
  } catch {
    // a browser that keeps nothing: the choice lasts as long as the page
  }
}

export function recall(key) {
  try {
    return localStorage.getItem(`tidegate.${key}`);
  } catch {
    return null;
  }
}
