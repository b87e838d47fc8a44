// Numbers as a person reads them at a glance: three digits, a unit, a dash for what is not known.

import { t } from "./words.js";

export const NONE = "–";

/** 1234567 as 1.23M; whole numbers stay whole up to 9,999. */
export function count(value) {
  if (value === null || value === undefined) return NONE;
  if (Math.abs(value) < 10000) return Number.isInteger(value) ? String(value) : digits(value);
  if (Math.abs(value) < 1e6) return `${digits(value / 1e3)}k`;
  return Math.abs(value) < 1e9 ? `${digits(value / 1e6)}M` : `${digits(value / 1e9)}G`;
}

/** Seconds as 4 ms, 1.25 s, 12 min, 3.5 h. */
export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return `0 ${t("ms")}`;
  if (value < 0.9995) return value < 0.001 ? `<1 ${t("ms")}` : `${digits(value * 1000)} ${t("ms")}`;
  if (value < 120) return `${digits(value)} ${t("s")}`;
  if (value < 7200) return `${digits(value / 60)} ${t("min")}`;
  return value < 172800 ? `${digits(value / 3600)} ${t("h")}` : `${digits(value / 86400)} ${t("d")}`;
}

/** Minutes and seconds left, 12:05. */
export function countdown(value) {
  const whole = Math.max(0, Math.round(value));
  const rest = String(whole % 60).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)}:${rest}`;
  return `${Math.floor(whole / 3600)}:${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")}:${rest}`;
}

/** A part as a percentage. */
export function percent(value, places = 0) {
  return value === null || value === undefined ? NONE : `${(100 * value).toFixed(places)}%`;
}

/** A time of day, local. */
export function clock(iso) {
  const at = new Date(iso);
  return Number.isNaN(at.getTime()) ? NONE : at.toLocaleTimeString([], { hour12: false });
}

/** Date and time of day, local. */
export function moment(iso) {
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return NONE;
  const two = (value) => String(value).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${at.toLocaleTimeString([], { hour12: false })}`;
}

function digits(value) {
  const size = Math.abs(value);
  return size >= 99.95 ? value.toFixed(0) : size >= 9.995 ? value.toFixed(1).replace(/\.0$/, "") : value.toFixed(2).replace(/\.?0+$/, "");
}
