// The source of the program, with marks beside the lines whose tensors are bad or watched.
import { useEffect, useMemo, useRef } from "preact/hooks";
import { useAddress, useHere, useLoaded, useParams } from "../app/context";
import { Empty, Loading, Mark, Problem, TensorLink } from "../parts/parts";
import { baseName, many } from "../parts/text";

const SHOWN_NODES = 60;

export function SourceView() {
  const { client, job, params, state } = useHere();
  const change = useParams();
  const address = useAddress();
  const answer = useLoaded(() => client.answer(job), [client, job, state.answer]);
  const first = answer.data?.report?.first_bad;
  const run = params.run ?? (first ? String(first.run) : "last");
  const task = params.rank !== undefined ? Number(params.rank) : params.run === undefined ? first?.rank : undefined;
  const place = useMemo(() => ({ job, run, task }), [job, run, task]);
  const isReady = answer.data !== null || answer.problem !== "" || params.run !== undefined;
  const files = useLoaded(
    () => (isReady ? client.sourceFiles(place) : new Promise<never>(() => undefined)),
    [client, place, isReady],
  );
  const shown = files.data?.files ?? [];
  const path = params.path ?? shown.find((file) => file.bad)?.path ?? shown[0]?.path ?? "";
  const marks = useLoaded(() => (path ? client.sourceMarks(place, path) : Promise.resolve(null)), [client, place, path]);
  const text = useLoaded(() => (path ? client.sourceText(place, path) : Promise.resolve(null)), [client, place, path]);
  const line = Number(params.line ?? 0);
  const lines = useMemo(() => new Map(marks.data?.lines.map((each) => [each.line, each.nodes])), [marks.data]);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    box.current?.querySelector(".line.chosen")?.scrollIntoView({ block: "center" });
  }, [text.data, line, path]);
  if (!files.data && !path) return files.problem ? <Problem text={files.problem} /> : <Loading what="Reading source files…" />;
  if (!path) {
    return (
      <Empty title="No source lines are known">
        <p>The graph of this run does not say which lines its operations come from.</p>
      </Empty>
    );
  }
  const nodes = lines.get(line);
  return (
    <div class="source">
      <aside class="card">
        <h2>Files of run {run}</h2>
        <ul class="files">
          {shown.map((file) => (
            <li>
              <a href={address("source", { ...params, path: file.path, line: null })} aria-current={file.path === path ? "true" : undefined} title={file.path}>
                <bdi>{baseName(file.path)}</bdi>
              </a>
              <span class="muted small"> {many(file.nodes, "node")}</span>
              {file.bad > 0 && <b class="bad-text small"> {file.bad} bad</b>}
            </li>
          ))}
        </ul>
        {line > 0 && (
          <>
            <h2>Line {line}</h2>
            {nodes ? (
              <ul class="nodes">
                {nodes.slice(0, SHOWN_NODES).map((node) => (
                  <li>
                    <Mark health={node.bad ? "bad" : "good"} />
                    <span class="name">
                      <TensorLink name={`${node.name}:0`} run={run} rank={task} label={node.name} />
                    </span>
                    <a class="small" href={address("graph", { name: node.name, run, rank: task })}>
                      graph
                    </a>
                  </li>
                ))}
                {nodes.length > SHOWN_NODES && <li class="muted">and {nodes.length - SHOWN_NODES} more</li>}
              </ul>
            ) : (
              <p class="muted">No recorded operation comes from it.</p>
            )}
          </>
        )}
      </aside>
      <section class="card text">
        <h2 class="name">
          <bdi>{path}</bdi>
        </h2>
        {text.problem ? (
          <Missing problem={text.problem} lines={lines} choose={(number) => change({ line: number })} />
        ) : !text.data ? (
          <Loading what="Reading the file…" />
        ) : (
          <div class="code" ref={box}>
            {text.data.text.split("\n").map((content, place) => {
              const number = place + 1;
              const found = lines.get(number);
              const bad = found?.some((node) => node.bad);
              return (
                <div
                  class={`line${number === line ? " chosen" : ""}${bad ? " bad" : found ? " watched" : ""}`}
                  data-line={number}
                  tabIndex={found ? 0 : undefined}
                  role={found ? "button" : undefined}
                  onKeyDown={(event) => found && event.key === "Enter" && change({ line: number, path })}
                  onClick={() => change({ line: number, path })}
                >
                  <span class="gutter">{bad ? "✗" : found ? "•" : ""}</span>
                  <span class="number">{number}</span>
                  <bdi>{content || " "}</bdi>
                </div>
              );
            })}
          </div>
        )}
      </section>
    </div>
  );
}

/** The file was not stored, but which of its lines matter is known. */
function Missing(props: { problem: string; lines: Map<number, { bad: boolean }[]>; choose: (line: number) => void }) {
  return (
    <>
      <p class="muted">{props.problem}</p>
      <ul>
        {[...props.lines].map(([line, nodes]) => (
          <li>
            <button type="button" class="quiet" onClick={() => props.choose(line)}>
              line {line}: {many(nodes.length, "node")}
            </button>
            {nodes.some((node) => node.bad) && <b class="bad-text"> bad</b>}
          </li>
        ))}
      </ul>
    </>
  );
}
