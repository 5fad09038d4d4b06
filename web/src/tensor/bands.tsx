// Min, max, mean and deviation over the runs.
import { useMemo } from "preact/hooks";
import type { History } from "../api/types";
import { useHere, useParams } from "../app/context";
import { Chart, type Series } from "../parts/chart";
import { Choice } from "../parts/parts";
import { asNumber, count, many, short } from "../parts/text";

type Scale = "linear" | "log";

export function Bands(props: { history: History; run: number; choose: (run: number) => void }) {
  const { history } = props;
  const { params } = useHere();
  const change = useParams();
  const scale: Scale = params.scale === "log" ? "log" : "linear";
  const shown = useMemo(() => prepared(history, scale), [history, scale]);
  const at = nearest(shown.x, props.run);
  const column = (name: string) => asNumber(history.columns[name]?.[at]);
  const bad = column("nan") + column("neg_inf") + column("pos_inf");
  return (
    <section class="card" aria-label="History">
      <div class="bar">
        <h2>Over {many(history.total, "run")}</h2>
        <span class="space" />
        <Choice
          label="Scale"
          value={scale}
          options={[
            ["linear", "Linear"],
            ["log", "Log of magnitude"],
          ]}
          choose={(next) => change({ scale: next === "log" ? next : null })}
        />
      </div>
      <Chart
        x={shown.x}
        series={shown.series}
        bands={shown.bands}
        isLog={scale === "log"}
        marks={shown.marks}
        chosen={shown.x[at] ?? null}
        choose={props.choose}
      />
      <table class="numbers">
        <tbody>
          <tr>
            {["min", "max", "mean"].map((name) => (
              <td>
                <span class="muted">{name}</span> {short(column(name))}
              </td>
            ))}
            <td>
              <span class="muted">std</span> {short(Math.sqrt(column("variance")))}
            </td>
            <td>
              <span class="muted">elements</span> {count(column("elements"))}
            </td>
            <td>
              <span class="muted">zero</span> {count(column("zero"))}
            </td>
            {bad > 0 && (
              <td class="bad-text">
                {column("nan") > 0 && <>{count(column("nan"))} NaN </>}
                {column("neg_inf") > 0 && <>{count(column("neg_inf"))} −inf </>}
                {column("pos_inf") > 0 && <>{count(column("pos_inf"))} +inf</>}
              </td>
            )}
            <td class="muted">at run {count(shown.x[at] ?? 0)}</td>
          </tr>
        </tbody>
      </table>
    </section>
  );
}

function prepared(history: History, scale: Scale) {
  const column = (name: string) => (history.columns[name] ?? []).map(asNumber);
  const x = column("run");
  const [min, max, mean, variance] = ["min", "max", "mean", "variance"].map(column) as [
    number[],
    number[],
    number[],
    number[],
  ];
  const [nan, negative, positive] = ["nan", "neg_inf", "pos_inf"].map(column) as [number[], number[], number[]];
  const finite = (values: number[]) => values.map((value) => (Number.isFinite(value) ? value : null));
  const std = variance.map((value) => Math.sqrt(value));
  const marks = x.flatMap((run, place) => {
    if (nan[place]) return [{ x: run, colour: "--nan", letter: "N" }];
    return negative[place] || positive[place] ? [{ x: run, colour: "--inf", letter: "∞" }] : [];
  });
  let series: Series[];
  let bands: { upper: number; lower: number; colour: string }[];
  if (scale === "log") {
    const positiveOnly = (values: number[]) => values.map((value) => (Number.isFinite(value) && value > 0 ? value : null));
    series = [
      { label: "largest", values: positiveOnly(max.map((value, i) => Math.max(Math.abs(value), Math.abs(min[i]!)))), colour: "--accent" },
      { label: "root mean square", values: positiveOnly(mean.map((value, i) => Math.sqrt(value * value + variance[i]!))), colour: "--good", isDotted: true },
    ];
    bands = [];
  } else {
    series = [
      { label: "max", values: finite(max), colour: "--middle", width: 1 },
      { label: "min", values: finite(min), colour: "--middle", width: 1 },
      { label: "mean + std", values: finite(mean.map((value, i) => value + std[i]!)), colour: "--accent", width: 0.5 },
      { label: "mean − std", values: finite(mean.map((value, i) => value - std[i]!)), colour: "--accent", width: 0.5 },
      { label: "mean", values: finite(mean), colour: "--accent", width: 2 },
    ];
    bands = [
      { upper: 0, lower: 1, colour: "--middle" },
      { upper: 2, lower: 3, colour: "--accent" },
    ];
  }
  return { x, series, bands, marks };
}

function nearest(values: number[], wanted: number): number {
  if (!Number.isFinite(wanted)) return values.length - 1;
  let best = 0;
  values.forEach((value, place) => {
    if (Math.abs(value - wanted) < Math.abs(values[best]! - wanted)) best = place;
  });
  return best;
}
