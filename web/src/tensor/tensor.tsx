// One tensor: its numbers over all runs, its value at one of them, beside another, and its gate.
import { useMemo } from "preact/hooks";
import { useAddress, useHere, useLoaded, useParams } from "../app/context";
import { GateButtons } from "../control/gate";
import { Copy, Empty, Loading, Mark, Problem, SourceLink, TensorLink } from "../parts/parts";
import { baseName } from "../parts/text";
import { Bands } from "./bands";
import { ValueCard } from "./value";

const POINTS = 1500;

export function TensorView() {
  const { client, job, params, state, isLive } = useHere();
  const change = useParams();
  const address = useAddress();
  const name = params.name ? (params.name.includes(":") ? params.name : `${params.name}:0`) : "";
  const rank = params.rank === undefined ? null : Number(params.rank);
  const history = useLoaded(
    () => (name ? client.history(job, name, rank, POINTS) : Promise.reject(new Error(""))),
    [client, job, name, rank, state.grid],
  );
  const runs = history.data?.columns.run as number[] | undefined;
  const run = params.run ?? (runs?.length ? String(runs[runs.length - 1]) : "last");
  const place = useMemo(() => ({ job, run, task: rank }), [job, run, rank]);
  const around = useLoaded(
    () => (name ? client.node(place, name.slice(0, name.lastIndexOf(":")), 1) : Promise.reject(new Error(""))),
    [client, place, name],
  );
  if (!name) {
    return (
      <Empty title="No tensor is chosen">
        <p>
          Choose one in the <a href={address("overview")}>grid</a>, or follow a name of the answer.
        </p>
      </Empty>
    );
  }
  const node = around.data?.node;
  return (
    <>
      <section class="card tensor-head">
        <h1 class="name">
          <bdi>{name}</bdi> <Copy text={name} />
        </h1>
        <div class="bar facts">
          {node && (
            <>
              <span>
                <Mark health={node.health} />
                {node.text}
              </span>
              <span class="mono">{node.op}</span>
              {node.phase && <span class="muted">{node.phase}</span>}
              {node.module && (
                <span class="muted">
                  module <bdi class="mono">{node.module}</bdi>
                </span>
              )}
              {node.source && (
                <SourceLink
                  file={node.source.file}
                  line={node.source.line}
                  run={run}
                  rank={rank}
                  label={`${baseName(node.source.file)}:${node.source.line}`}
                />
              )}
            </>
          )}
          <a href={address("graph", { name: node?.name ?? name, run, rank })}>graph around it</a>
          <span class="space" />
          {isLive && <GateButtons tensor={name} />}
        </div>
        {node && (node.inputs.length > 0 || node.outputs.length > 1) && (
          <dl class="neighbours">
            {node.inputs.length > 0 && <dt>made of</dt>}
            {node.inputs.length > 0 && (
              <dd>
                {node.inputs.slice(0, 8).map((each) => (
                  <p>
                    <TensorLink name={each.tensor} run={run} rank={rank} /> <span class="muted">{each.health}</span>
                  </p>
                ))}
                {node.inputs.length > 8 && <p class="muted">and {node.inputs.length - 8} more</p>}
              </dd>
            )}
          </dl>
        )}
      </section>
      {history.data ? (
        <Bands history={history.data} run={Number(run)} choose={(next) => change({ run: next }, false)} />
      ) : history.problem ? (
        <Problem text={history.problem} />
      ) : (
        <Loading what="Reading its history…" />
      )}
      <ValueCard place={place} name={name} version={state.grid ?? 0} />
    </>
  );
}
