// Small helpers to build and update elements. Whatever comes from the gateway goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: `h("td", {class: "num"}, "3", child)`. Functions become listeners (`onclick`). */
export function h(tag, props = {}, ...children) {
  const element = tag === "svg" || tag === "polyline" || tag === "polygon" || tag === "title"
    ? document.createElementNS(SVG, tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Set an element's text, if it differs: touching nothing costs nothing. */
export function text(element, value) {
  const string = String(value);
  if (element.textContent !== string) element.textContent = string;
}

/** Set an attribute, if it differs; `null` takes it away. */
export function attribute(element, name, value) {
  if (value === null) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, value);
  }
}

/** Replace an element's children, if `key` differs from that of the last time. */
export function fill(element, key, make) {
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  element.replaceChildren(...make());
}

/** Show an element or not. */
export function shown(element, yes) {
  if (element.hidden === yes) element.hidden = !yes;
}

/** A bar from 0 to 1 with an optional mark; `level` is "", "near" or "over". */
export function meter() {
  const bar = h("div", { class: "fill" });
  const at = h("div", { class: "at", hidden: true });
  const element = h("div", { class: "meter", role: "img" }, bar, at);
  element.set = (part, { mark = null, level = "", label = "" } = {}) => {
    const size = `scaleX(${Math.max(0, Math.min(1, part ?? 0)).toFixed(3)})`;
    if (bar.style.transform !== size) bar.style.transform = size;
    shown(at, mark !== null);
    if (mark !== null) at.style.left = `calc(${(100 * Math.min(1, mark)).toFixed(1)}% - 1px)`;
    attribute(element, "class", `meter ${level}`.trim());
    attribute(element, "aria-label", label);
    attribute(element, "title", label);
  };
  return element;
}
