// The gate of one tensor, set from its panel.
import { useState } from "preact/hooks";
import { useHere, useLoaded } from "../app/context";

const WORDS: Record<string, string> = { closed: "closed", open: "open", breakpoint: "breakpoint" };

export function GateButtons({ tensor }: { tensor: string }) {
  const { client, job, state } = useHere();
  const { data } = useLoaded(() => client.gates(job), [client, job, state.gates]);
  const [problem, setProblem] = useState("");
  if (!data) return null;
  const gated = data.gated.filter((key) => key.startsWith(`${tensor}:`));
  const keys = [...new Set([...gated, ...data.gates.map((each) => each.watch_key).filter((key) => key.startsWith(`${tensor}:`))])];
  if (!keys.length) return null;
  return (
    <span class="gates">
      {keys.map((key) => (
        <GateChoice watchKey={key} now={data.gates.find((each) => each.watch_key === key)?.state ?? "closed"} failed={setProblem} label={key.slice(tensor.length + 1).replace("Debug", "")} />
      ))}
      {problem && <span class="bad-text">{problem}</span>}
    </span>
  );
}

export function GateChoice(props: { watchKey: string; now: string; failed: (problem: string) => void; label?: string }) {
  const { client, job } = useHere();
  const [chosen, setChosen] = useState<string | null>(null);
  const set = (next: string) => {
    setChosen(next);
    client.setGate(job, props.watchKey, next).then(
      () => {
        setChosen(null);
        props.failed("");
      },
      (error: Error) => {
        setChosen(null);
        props.failed(error.message);
      },
    );
  };
  const now = chosen ?? props.now;
  return (
    <span class="gate">
      {props.label && <span class="muted small">{props.label} </span>}
      <span class="choice" role="radiogroup" aria-label={`Gate of ${props.watchKey}`}>
        {Object.keys(WORDS).map((state) => (
          <button type="button" role="radio" aria-checked={state === now} onClick={() => set(state)}>
            {WORDS[state]}
          </button>
        ))}
      </span>
    </span>
  );
}
