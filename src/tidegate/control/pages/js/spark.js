// Sparklines of the last 15 minutes: the gateway keeps the points, the page only draws them.

import { attribute, h } from "./dom.js";

const WIDTH = 180;
const HEIGHT = 32;

export class History {
  constructor() {
    this.points = WIDTH;
    this.series = {};
    this.number = 0;
  }

  /** Take the whole history. */
  replace({ points, series }) {
    this.points = points;
    this.series = series;
    this.number += 1;
  }

  /** Take one more point. */
  add(point) {
    for (const name of Object.keys(point)) this.series[name] ??= [];
    const length = Math.max(0, ...Object.values(this.series).map((values) => values.length));
    for (const [name, values] of Object.entries(this.series)) {
      while (values.length < length) values.push(null);
      values.push(point[name] ?? null);
      if (values.length > this.points) values.splice(0, values.length - this.points);
    }
    this.number += 1;
  }
}

/** An empty sparkline of class `kind`. */
export function spark(kind) {
  return h("svg", { class: `spark ${kind}`, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
    h("polygon", {}), h("polyline", {}));
}

/** Draw values, newest at the right edge, from 0 to the largest; `label` says what they are. */
export function draw(element, values, points, label) {
  const known = (values ?? []).filter((value) => value !== null);
  const top = Math.max(1e-9, ...known);
  const place = (value, index) => {
    const x = (WIDTH * (points - values.length + index)) / Math.max(1, points - 1);
    return `${x.toFixed(1)},${(HEIGHT - 2 - ((HEIGHT - 4) * value) / top).toFixed(1)}`;
  };
  const line = (values ?? []).flatMap((value, index) => (value === null ? [] : [place(value, index)]));
  const [area, stroke] = element.children;
  attribute(stroke, "points", line.join(" "));
  const ends = line.length ? [line[0].split(",")[0], line.at(-1).split(",")[0]] : [];
  attribute(area, "points", line.length ? `${ends[0]},${HEIGHT} ${line.join(" ")} ${ends[1]},${HEIGHT}` : "");
  attribute(element, "aria-label", label);
}
