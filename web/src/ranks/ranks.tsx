// Which rank differs, and where first.
import type { RankDifference } from "../api/types";
import { useHere, useLoaded } from "../app/context";
import { Empty, Loading, Problem, TensorLink } from "../parts/parts";
import { count, many } from "../parts/text";

const SHOWN = 100;

export function RanksView() {
  const { client, job, state } = useHere();
  const { data, problem } = useLoaded(() => client.ranks(job), [client, job, state.runs]);
  if (!data) return problem ? <Problem text={problem} /> : <Loading what="Comparing ranks…" />;
  if (data.ranks.length < 2) {
    return (
      <Empty title="One rank">
        <p>There is nothing to compare: only one process recorded these runs.</p>
      </Empty>
    );
  }
  const first = data.diverged[0];
  const missing = Object.entries(data.missing);
  return (
    <>
      <section class={`answer ${first ? "bad" : "healthy"}`}>
        <h1>
          {first ? (
            <>
              <b class="red">✗ Rank {first.odd_ranks.join(", ")} went its own way</b> in run {count(first.run)}
            </>
          ) : (
            <>
              <b class="green">✓ No rank went its own way</b> in {many(data.runs, "run")}
            </>
          )}
        </h1>
        <p class="muted">
          {many(data.ranks.length, "rank")}, {many(data.runs, "run")} compared; {many(data.equal, "tensor")} the same on all.
        </p>
        {first && (
          <dl>
            <dt>tensor</dt>
            <dd>
              <TensorLink name={first.tensor} run={first.run} rank={first.odd_ranks[0]} /> was the same on all ranks in{" "}
              {many(first.equal_runs, "run")} before
            </dd>
          </dl>
        )}
      </section>
      {data.diverged.length > 0 && <Differences title="Were the same, then were not" rows={data.diverged} />}
      {data.different.length > 0 && <Differences title="Differ from the first compared run on" rows={data.different} isUsual />}
      {missing.length > 0 && (
        <section class="card">
          <h2>Not on all ranks</h2>
          <table class="plain">
            <tbody>
              {missing.slice(0, SHOWN).map(([key, ranks]) => (
                <tr>
                  <td class="name">
                    <bdi>{key}</bdi>
                  </td>
                  <td class="muted">missing on {ranks.join(", ")}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
    </>
  );
}

function Differences({ title, rows, isUsual }: { title: string; rows: RankDifference[]; isUsual?: boolean }) {
  return (
    <section class="card">
      <h2>
        {title} <span class="muted">{count(rows.length)}</span>
      </h2>
      {isUsual && <p class="muted">Ranks see different data, so most activations do.</p>}
      <div class="scroll">
        <table class="plain">
          <thead>
            <tr>
              <th>tensor</th>
              <th class="number">first in run</th>
              <th class="number">step</th>
              <th>odd ranks</th>
            </tr>
          </thead>
          <tbody>
            {rows.slice(0, SHOWN).map((row) => (
              <tr>
                <td>
                  <TensorLink name={row.tensor} run={row.run} rank={row.odd_ranks[0]} />
                </td>
                <td class="number">{count(row.run)}</td>
                <td class="number">{row.step}</td>
                <td>{row.odd_ranks.join(", ")}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows.length > SHOWN && <p class="muted">and {count(rows.length - SHOWN)} more</p>}
    </section>
  );
}
