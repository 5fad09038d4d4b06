// A matrix in colours; NaN and infinities in theirs, with a pattern.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { bytesOf, floatsOf } from "../api/bytes";
import type { Pictured } from "../api/types";
import { colour } from "../app/theme";
import { NAN, NEG_INF, POS_INF } from "../grid/cells";
import { count, short } from "../parts/text";

const WIDEST = 560;
const TALLEST = 420;
const LARGEST_CELL = 28;

export function HeatMap({ pictured, isDiverging }: { pictured: Pictured; isDiverging: boolean }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [hover, setHover] = useState<string>("");
  const [theme, setTheme] = useState(0);
  const means = useMemo(() => floatsOf(pictured.means), [pictured]);
  const kinds = useMemo(() => bytesOf(pictured.kinds), [pictured]);
  const [low, high] = useMemo(() => rangeOf(means), [means]);
  const { rows, columns } = pictured;
  const scale = Math.max(1, Math.floor(Math.min(WIDEST / columns, TALLEST / rows, LARGEST_CELL)));
  useEffect(() => {
    const changed = () => setTheme((before) => before + 1);
    addEventListener("themechange", changed);
    return () => removeEventListener("themechange", changed);
  }, []);
  useEffect(() => {
    const element = canvas.current;
    if (!element || !rows || !columns) return;
    element.width = columns * scale;
    element.height = rows * scale;
    const context = element.getContext("2d")!;
    const image = context.createImageData(element.width, element.height);
    const shades = { nan: colour("--nan"), inf: colour("--inf"), none: colour("--sunken") };
    for (let y = 0; y < element.height; y++) {
      for (let x = 0; x < element.width; x++) {
        const at = Math.floor(y / scale) * columns + Math.floor(x / scale);
        const bad = kinds[at]!;
        let rgb: readonly number[] = shades.none;
        if (bad & NAN) rgb = (x + y) % 5 === 0 ? shades.none : shades.nan;
        else if (bad) rgb = y % 4 === 1 ? shades.none : shades.inf;
        else if (!Number.isNaN(means[at]!)) rgb = shade(means[at]!, low, high, isDiverging);
        const place = (y * element.width + x) * 4;
        image.data[place] = rgb[0]!;
        image.data[place + 1] = rgb[1]!;
        image.data[place + 2] = rgb[2]!;
        image.data[place + 3] = 255;
      }
    }
    context.putImageData(image, 0, 0);
  }, [pictured, scale, theme, isDiverging]);
  if (!rows || !columns) return <p class="muted">It has no elements.</p>;
  const told = (event: MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const column = Math.min(columns - 1, Math.floor(((event.clientX - box.left) / box.width) * columns));
    const row = Math.min(rows - 1, Math.floor(((event.clientY - box.top) / box.height) * rows));
    const at = row * columns + column;
    const bad = kinds[at]!;
    const names = [bad & NAN ? "NaN" : "", bad & NEG_INF ? "−inf" : "", bad & POS_INF ? "+inf" : ""].filter(Boolean);
    const [tall, wide] = [pictured.shown[0]!, pictured.shown[1]!];
    const where = pictured.is_whole
      ? `[${row}, ${column}]`
      : `[${Math.floor((row * tall) / rows)}…, ${Math.floor((column * wide) / columns)}…]`;
    setHover(`${where}  ${names.length ? names.join(", ") : short(means[at]!)}${pictured.is_whole || names.length ? "" : " on average"}`);
  };
  return (
    <div class="heat">
      <canvas ref={canvas} role="img" aria-label={`Heat map of ${count(rows)} × ${count(columns)} cells`} onMouseMove={told} onMouseLeave={() => setHover("")} />
      <p class="muted small mono">
        {hover || (
          <>
            <span class="ramp-word">{short(low)}</span>
            <span class={`heat-ramp${isDiverging || low < 0 && high > 0 ? " diverging" : ""}`} />
            <span class="ramp-word">{short(high)}</span>
            {!pictured.is_whole && <span> · averages: {count(pictured.shown[0]!)} × {count(pictured.shown[1]!)} elements</span>}
          </>
        )}
      </p>
    </div>
  );
}

function rangeOf(values: Float32Array): [number, number] {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? [0, 0] : [low, high];
}

const WARM = [178, 76, 20];
const COLD = [24, 92, 160];
const MIDDLE = [244, 243, 240];

/** Around zero two hues; of one sign alone, one. */
function shade(value: number, low: number, high: number, isDiverging: boolean): number[] {
  const size = Math.max(Math.abs(low), Math.abs(high)) || 1;
  if (isDiverging || (low < 0 && high > 0)) {
    const share = Math.min(1, Math.abs(value) / size) ** 0.7;
    return mixed(MIDDLE, value < 0 ? COLD : WARM, share);
  }
  const share = high > low ? (value - low) / (high - low) : 0.5;
  return mixed(MIDDLE, low < 0 ? COLD : WARM, low < 0 ? 1 - share : share);
}

function mixed(a: readonly number[], b: readonly number[], share: number): number[] {
  return a.map((each, place) => Math.round(each + (b[place]! - each) * share));
}
