// What the three bytes of a cell mean; the same as `analyze/mosaic.py` says.

export const NAN = 1;
export const NEG_INF = 2;
export const POS_INF = 4;
export const BAD = NAN | NEG_INF | POS_INF;
export const RECORDED = 8;
export const UNREAD = 16;

const SMALLEST_POWER = -20;
const LEVELS_PER_POWER = 6;
export const ALL_ZERO = 1;

/** The power of ten of the largest element; null if there is none. */
export function powerOf(size: number): number | null {
  return size <= ALL_ZERO ? null : (size - ALL_ZERO - 1) / LEVELS_PER_POWER + SMALLEST_POWER;
}

export function describe(kinds: number, size: number, zeros: number): string {
  if (!(kinds & RECORDED)) return "not recorded";
  const bad = [kinds & NAN ? "NaN" : "", kinds & NEG_INF ? "−inf" : "", kinds & POS_INF ? "+inf" : ""].filter(Boolean);
  const power = powerOf(size);
  const largest = size === ALL_ZERO ? "all finite elements 0" : power === null ? "" : `largest about ${shown(power)}`;
  const share = zeros ? `${Math.round((zeros / 255) * 100)} % zeros` : "";
  const unread = kinds & UNREAD && !(kinds & BAD) ? "not looked at" : "";
  return [bad.join(", "), unread, largest, share].filter(Boolean).join(" · ") || "good";
}

function shown(power: number): string {
  return Number((10 ** power).toPrecision(1)).toExponential().replace("e+", "e").replace("-", "−");
}
