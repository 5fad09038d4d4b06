// What the colours mean.
import { HIGH_POWER, LOW_POWER, type Mode, type Palette } from "./paint";

export function Legend({ mode, palette }: { mode: Mode; palette: Palette }) {
  const shades = Array.from({ length: 14 }, (_, place) => place / 13);
  const of = (share: number) =>
    mode === "zeros" ? palette.ofZeros(share * 255) : palette.ofPower(LOW_POWER + share * (HIGH_POWER - LOW_POWER));
  return (
    <div class="legend muted" aria-label="Legend">
      <span class="swatch nan">N</span>NaN
      <span class="swatch inf">∞</span>inf
      <span class="swatch unread" />
      not looked at
      <span class="ramp">
        {mode === "zeros" ? "0 %" : "≤ 1e−10"}
        <span class="shades">
          {shades.map((share) => (
            <i style={{ background: `rgb(${of(share).join(",")})` }} />
          ))}
        </span>
        {mode === "zeros" ? "100 % zeros" : "≥ 1e4"}
      </span>
    </div>
  );
}
