// What a running program is told: gates that open, breakpoints at which it waits, values it goes on with.
import { useEffect, useState } from "preact/hooks";
import type { Waiting } from "../api/types";
import { useHere, useLoaded } from "../app/context";
import { Empty, Loading, Problem, TensorLink } from "../parts/parts";
import { asNumber, many, short } from "../parts/text";
import { runNumber } from "../answer/answer";
import { GateChoice } from "./gate";

const SHOWN = 200;

export function ControlView() {
  const { client, job, state, params } = useHere();
  const gates = useLoaded(() => client.gates(job), [client, job, state.gates, state.runs]);
  const waiting = useLoaded(() => client.breakpoints(job), [client, job, (state.waiting ?? []).join(",")]);
  const [filter, setFilter] = useState(params.name ?? "");
  const [problem, setProblem] = useState("");
  if (!gates.data) return gates.problem ? <Problem text={gates.problem} /> : <Loading what="Asking for gates…" />;
  const states = new Map(gates.data.gates.map((each) => [each.watch_key, each.state]));
  const keys = [...new Set([...states.keys(), ...gates.data.gated])];
  const shown = keys
    .filter((key) => key.toLowerCase().includes(filter.toLowerCase()))
    .sort((a, b) => Number((states.get(b) ?? "closed") !== "closed") - Number((states.get(a) ?? "closed") !== "closed") || a.localeCompare(b));
  return (
    <>
      <section class="card" aria-label="Waiting">
        <h2>Waiting at breakpoints</h2>
        {waiting.data && waiting.data.waiting.length > 0 ? (
          waiting.data.waiting.map((hit) => <Hit key={hit.id} hit={hit} />)
        ) : (
          <p class="muted">Nobody waits.</p>
        )}
      </section>
      <section class="card" aria-label="Gates">
        <div class="bar">
          <h2>Gates</h2>
          <input data-filter type="search" placeholder="Filter by name  /" aria-label="Filter gates" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
          <span class="muted">{many(shown.length, "watch").replace("watchs", "watches")}</span>
        </div>
        {problem && <Problem text={problem} />}
        {keys.length === 0 ? (
          <Empty title="No gated watches">
            <p>
              The program has none. <code>TensorBoardDebugHook</code>, or a debug op with <code>(gated_grpc=true)</code>, makes them.
            </p>
          </Empty>
        ) : (
          <table class="plain gatelist">
            <tbody>
              {shown.slice(0, SHOWN).map((key) => (
                <tr key={key}>
                  <td>
                    <TensorLink name={key.slice(0, key.lastIndexOf(":"))} label={key} />
                  </td>
                  <td class="number">
                    <GateChoice watchKey={key} now={states.get(key) ?? "closed"} failed={setProblem} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
        {shown.length > SHOWN && <p class="muted">and {shown.length - SHOWN} more; filter by name.</p>}
        <p class="muted small">A gate that is open publishes its values from the next run on. At a breakpoint the program waits after each value.</p>
      </section>
    </>
  );
}

function Hit({ hit }: { hit: Waiting }) {
  const { client, job } = useHere();
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const [seconds, setSeconds] = useState(0);
  useEffect(() => {
    const tick = () => setSeconds(Math.max(0, Math.round(Date.now() / 1000 - hit.since)));
    tick();
    const timer = setInterval(tick, 1000);
    return () => clearInterval(timer);
  }, [hit.since]);
  const release = (value?: unknown) => client.release(job, hit.id, value).catch((error: Error) => setProblem(error.message));
  const replace = (event: Event) => {
    event.preventDefault();
    try {
      void release(JSON.parse(text.trim().replace(/^(-?)inf$/i, '"$1inf"').replace(/^nan$/i, '"nan"')));
    } catch {
      setProblem("Type one number for all elements, or nested lists of the same shape, such as [[1, 2], [3, 4]].");
    }
  };
  const run = runNumber(hit.run);
  return (
    <div class="hit">
      <p>
        <TensorLink name={hit.watch_key.slice(0, hit.watch_key.lastIndexOf(":"))} run={run} rank={hit.task} />{" "}
        <span class="muted">
          in run {run} of rank {hit.task}, for {seconds} s
        </span>
      </p>
      <p class="mono">
        {hit.dtype} {hit.shape ? `[${hit.shape.join(", ")}]` : ""} <span class={hit.health.startsWith("good") ? "" : "bad-text"}>{hit.health}</span>
      </p>
      <p class="mono muted elements">
        {hit.first_elements.map((each) => short(typeof each === "number" ? each : asNumber(each))).join("  ")}
        {hit.shape && hit.shape.reduce((a, b) => a * b, 1) > hit.first_elements.length ? " …" : ""}
      </p>
      <div class="bar">
        <button type="button" class="primary" onClick={() => void release()}>
          Release
        </button>
        <form class="bar" onSubmit={replace}>
          <input aria-label="Another value" placeholder="0, or [[1, 2], …]" value={text} onInput={(event) => setText(event.currentTarget.value)} />
          <button type="submit" class="warn" disabled={!text.trim()}>
            Replace and go on
          </button>
        </form>
      </div>
      {problem && <p class="problem">{problem}</p>}
    </div>
  );
}
