// Timelines of profiled steps: the slowest operations, memory over time, and a way into Perfetto.
import { useMemo, useState } from "preact/hooks";
import type { Slow, Trace } from "../api/types";
import { useAddress, useHere, useLoaded, useParams } from "../app/context";
import { Chart } from "../parts/chart";
import { Choice, Empty, Loading, Problem, TensorLink, save } from "../parts/parts";
import { bytes, count, micros } from "../parts/text";
import { openInPerfetto } from "./perfetto";

type By = "ops" | "nodes" | "lines";

export function TimelinesView() {
  const { client, job, params, state } = useHere();
  const address = useAddress();
  const list = useLoaded(() => client.traces(job), [client, job, state.runs]);
  if (!list.data) return list.problem ? <Problem text={list.problem} /> : <Loading what="Looking for timelines…" />;
  if (!list.data.traces.length) {
    return (
      <Empty title="No timelines">
        <p>
          <code>tensortap run --profile train.py</code> writes some into the session; ProfilerHook writes them wherever it is told to.
        </p>
      </Empty>
    );
  }
  const chosen = list.data.traces.find((each) => String(each.id) === params.trace) ?? list.data.traces[0]!;
  return (
    <div class="timelines">
      <aside class="card">
        <h2>Timelines</h2>
        <ul>
          {list.data.traces.map((each) => (
            <li>
              <a href={address("timelines", { trace: each.id, by: params.by })} aria-current={each.id === chosen.id ? "true" : undefined}>
                <bdi>{each.name}</bdi>
              </a>
              <span class="muted small">{bytes(each.bytes)}</span>
            </li>
          ))}
        </ul>
      </aside>
      <OneTrace key={chosen.id} id={chosen.id} name={chosen.name} />
    </div>
  );
}

function OneTrace({ id, name }: { id: number; name: string }) {
  const { client, job, params } = useHere();
  const change = useParams();
  const { data, problem } = useLoaded(() => client.trace(job, id), [client, job, id]);
  const by: By = params.by === "ops" || params.by === "lines" ? params.by : "nodes";
  const [failed, setFailed] = useState("");
  const fetched = (use: (content: ArrayBuffer) => void) => () => {
    client.traceFile(job, id).then(use, (error: Error) => setFailed(error.message));
  };
  if (!data) return problem ? <Problem text={problem} /> : <Loading what="Reading the timeline…" />;
  return (
    <div>
      <section class="card">
        <div class="bar">
          <h2>
            {data.step === null ? <bdi>{data.name}</bdi> : `Step ${data.step}`}
            {data.rank !== null && <span class="muted"> of rank {data.rank}</span>}
          </h2>
          <span class="muted">
            {micros(data.micros)}, {micros(data.busy_micros)} of it in operations
          </span>
          <span class="space" />
          {!client.isReport && (
            <>
              <button type="button" onClick={fetched((content) => !openInPerfetto(content, name) && setFailed("The browser did not allow a new tab. Allow it, or download the file and open it at ui.perfetto.dev."))} title="Opens ui.perfetto.dev in a new tab and hands the trace over to it, inside the browser">
                Open in Perfetto ↗
              </button>
              <button type="button" onClick={fetched((content) => save(content, name.replaceAll("/", "-")))}>
                Download
              </button>
            </>
          )}
        </div>
        {failed && <Problem text={failed} />}
        {data.left_out.map((each) => (
          <p class="muted">{each}</p>
        ))}
        <div class="bar by">
          <h3>Slowest</h3>
          <Choice
            label="By"
            value={by}
            options={[
              ["nodes", "Nodes"],
              ["ops", "Operations"],
              ["lines", "Lines"],
            ]}
            choose={(next) => change({ by: next === "nodes" ? null : next })}
          />
        </div>
        <SlowTable rows={data.slowest[by]} isNodes={by === "nodes"} />
      </section>
      <Memory trace={data} />
    </div>
  );
}

function SlowTable({ rows, isNodes }: { rows: Slow[]; isNodes: boolean }) {
  const most = Math.max(...rows.map((row) => row.micros), 1);
  return (
    <div class="scroll">
      <table class="plain slow">
        <thead>
          <tr>
            <th>what</th>
            <th class="number">time</th>
            <th class="number">share</th>
            <th class="number">calls</th>
            <th class="wide" />
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr>
              <td class="name">{isNodes ? <TensorLink name={`${row.name}:0`} label={row.name} /> : <bdi>{row.name}</bdi>}</td>
              <td class="number">{micros(row.micros)}</td>
              <td class="number">{(100 * row.share).toFixed(1)} %</td>
              <td class="number">{count(row.calls)}</td>
              <td class="wide">
                <span class="share" style={{ width: `${(100 * row.micros) / most}%` }} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const COLOURS = ["--accent", "--good", "--warn", "--huge"];

function Memory({ trace }: { trace: Trace }) {
  const shown = useMemo(() => {
    const names = Object.keys(trace.memory);
    const times = [...new Set(names.flatMap((name) => trace.memory[name]!.micros))].sort((a, b) => a - b);
    const series = names.map((name, place) => {
      const { micros: at, bytes: size } = trace.memory[name]!;
      const known = new Map(at.map((time, index) => [time, size[index]!]));
      let last: number | null = null;
      const values = times.map((time) => (last = known.get(time) ?? last));
      return { label: name, values, colour: COLOURS[place % COLOURS.length]! };
    });
    return { times, series };
  }, [trace]);
  if (!shown.times.length && !trace.peaks.length) return null;
  return (
    <section class="card">
      <h2>Memory over the step</h2>
      {shown.times.length > 0 && <Chart x={shown.times} series={shown.series} format={bytes} formatX={micros} height={190} />}
      {trace.peaks.map((peak) => (
        <details open={trace.peaks.length === 1}>
          <summary>
            Peak of <bdi>{peak.allocator}</bdi>: {bytes(peak.bytes)} at {micros(peak.micros)}, {count(peak.count)} tensors
          </summary>
          <table class="plain">
            <tbody>
              {peak.tensors.map((each) => (
                <tr>
                  <td class="name">
                    <bdi>{each.name}</bdi>
                  </td>
                  <td class="number">{bytes(each.bytes)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </details>
      ))}
    </section>
  );
}
