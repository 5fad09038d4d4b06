// A chart: uPlot in the colours of the page, as wide as there is room.
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { css } from "../app/theme";
import { useSize } from "./parts";
import { count, short } from "./text";

const WHOLE = [1, 2, 5].flatMap((digit) => Array.from({ length: 9 }, (_, power) => digit * 10 ** power)).sort((a, b) => a - b);

export interface Series {
  label: string;
  values: (number | null)[];
  colour: string;
  width?: number;
  isDotted?: boolean;
}

export function Chart(props: {
  x: number[];
  series: Series[];
  bands?: { upper: number; lower: number; colour: string }[];
  isLog?: boolean;
  height?: number;
  marks?: { x: number; colour: string; letter: string }[];
  chosen?: number | null;
  choose?: (x: number) => void;
  format?: (value: number) => string;
  formatX?: (value: number) => string;
}) {
  const [attach, width] = useSize();
  const box = useRef<HTMLDivElement>(null);
  const [theme, setTheme] = useState(0);
  const choose = useRef(props.choose);
  choose.current = props.choose;
  useEffect(() => {
    const changed = () => setTheme((before) => before + 1);
    addEventListener("themechange", changed);
    return () => removeEventListener("themechange", changed);
  }, []);
  useEffect(() => {
    if (!box.current || !width) return;
    const format = props.format ?? short;
    const formatX = props.formatX ?? ((value: number) => count(Math.round(value)));
    const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const chart = new uPlot(
      {
        width,
        height: props.height ?? 220,
        scales: { x: { time: false }, y: { distr: props.isLog ? 3 : 1 } },
        legend: { live: true },
        cursor: { drag: { x: true, y: false }, points: { size: 6 } },
        axes: [
          { ...axis, size: 28, incrs: props.formatX ? undefined : WHOLE, values: (_, splits) => splits.map(formatX) },
          { ...axis, size: 64, values: (_, splits) => splits.map((value) => (value == null ? "" : format(value))) },
        ],
        series: [
          { label: "", value: (_, value) => (value == null ? "" : formatX(value)) },
          ...props.series.map((each) => ({
            label: each.label,
            stroke: css(each.colour),
            width: each.width ?? 1.5,
            dash: each.isDotted ? [4, 3] : undefined,
            points: { show: props.x.length < 60, size: 4 },
            value: (_: uPlot, value: number | null) => (value == null ? "" : format(value)),
          })),
        ],
        bands: props.bands?.map((band) => ({
          series: [band.upper + 1, band.lower + 1] as [number, number],
          fill: `color-mix(in srgb, ${css(band.colour)} 18%, transparent)`,
        })),
        hooks: {
          draw: [(plot) => overlay(plot, props.marks ?? [], props.chosen ?? null)],
          ready: [
            (plot) => {
              plot.over.addEventListener("click", () => {
                const at = plot.cursor.idx;
                if (at != null && plot.select.width < 4) choose.current?.(plot.data[0][at]!);
              });
            },
          ],
        },
      },
      [props.x, ...props.series.map((each) => each.values)],
      box.current,
    );
    return () => chart.destroy();
  }, [width, theme, props.x, props.series, props.isLog, props.chosen, props.marks]);
  return (
    <div class="chart" ref={attach}>
      <div ref={box} />
    </div>
  );
}

/** The chosen run, and letters where there was something that has no place on a scale. */
function overlay(plot: uPlot, marks: { x: number; colour: string; letter: string }[], chosen: number | null): void {
  const context = plot.ctx;
  const { top, height, left, width } = plot.bbox;
  context.save();
  if (chosen !== null) {
    const x = plot.valToPos(chosen, "x", true);
    context.strokeStyle = css("--accent");
    context.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    context.beginPath();
    context.moveTo(x, top);
    context.lineTo(x, top + height);
    context.stroke();
    context.setLineDash([]);
  }
  context.font = `700 ${10 * devicePixelRatio}px system-ui`;
  context.textAlign = "center";
  let last = -Infinity;
  for (const mark of marks) {
    const x = plot.valToPos(mark.x, "x", true);
    if (x < left || x > left + width) continue;
    context.fillStyle = css(mark.colour);
    context.fillRect(x - devicePixelRatio, top, 2 * devicePixelRatio, 8 * devicePixelRatio);
    if (x - last > 14 * devicePixelRatio) {
      context.fillText(mark.letter, x, top + 20 * devicePixelRatio);
      last = x;
    }
  }
  context.restore();
}
