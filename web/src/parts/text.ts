// Numbers and names as people read them.
import type { Num } from "../api/types";

export function asNumber(value: Num | null | undefined): number {
  if (typeof value === "number") return value;
  if (value === "inf") return Infinity;
  if (value === "-inf") return -Infinity;
  return NaN;
}

export function short(value: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "+inf" : "−inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace("e+", "e").replace("-", "−");
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

export function count(value: number): string {
  return value.toLocaleString("en");
}

export function many(value: number, thing: string): string {
  return `${count(value)} ${thing}${value === 1 ? "" : "s"}`;
}

export function bytes(value: number): string {
  let size = value;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (size < 1024) return unit === "B" ? `${size} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TB`;
}

export function micros(value: number): string {
  if (value < 1000) return `${value.toFixed(0)} µs`;
  if (value < 1e6) return `${(value / 1000).toFixed(1)} ms`;
  return `${(value / 1e6).toFixed(2)} s`;
}

/** A moment, given in microseconds since the epoch. */
export function moment(value: number): string {
  const date = new Date(value / 1000);
  const today = new Date().toDateString() === date.toDateString();
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return today ? time : `${date.toLocaleDateString([], { year: "numeric", month: "short", day: "numeric" })} ${time}`;
}

/** A name that fits: the end says most, the beginning where it belongs. */
export function cut(text: string, width: number): string {
  if (text.length <= width) return text;
  const head = Math.floor((width - 1) / 3);
  return `${text.slice(0, head)}…${text.slice(text.length - (width - 1 - head))}`;
}

export function baseName(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1) || path;
}
