// The answer: the words of `tensortap why`, with links into everything else.
import { useHere, useLoaded } from "../app/context";
import type { Answer, Block, Cell, Link } from "../api/types";
import { Copy, Empty, Loading, Problem, SourceLink, TensorLink } from "../parts/parts";
import { many, moment } from "../parts/text";
import { useAddress } from "../app/context";

export function AnswerCard() {
  const { client, job, state } = useHere();
  const { data, problem } = useLoaded(() => client.answer(job), [client, job, state.answer, state.searching]);
  if (!data) return problem ? <Problem text={problem} /> : <Loading what="Reading…" />;
  switch (data.state) {
    case "searching":
      return (
        <section class="answer searching">
          <h1>
            <span class="spinner" /> Looking for bad values in {many(data.runs, "run")}…
          </h1>
        </section>
      );
    case "problem":
      return <Problem text={`The answer could not be worked out: ${data.problem}`} />;
    case "empty":
      return (
        <Empty title="No run yet">
          <p>The first one appears here by itself.</p>
        </Empty>
      );
    case "unknown":
      return (
        <Empty title="No health was recorded">
          <p>
            Nothing can be said about these {many(data.runs, "run")}. Watch with the debug op DebugNumericSummary, or
            run the program with <code>tensortap run</code>.
          </p>
        </Empty>
      );
    default:
      return <Told answer={data} />;
  }
}

function Told({ answer }: { answer: Answer }) {
  const [title, ...rest] = answer.card ?? [];
  const commands = rest.filter((block) => block.kind === "command");
  const told = grouped(rest.filter((block) => block.kind !== "command" && block.kind !== "gap"));
  return (
    <section class={`answer ${answer.state}`} aria-label="Answer">
      <h1>{title?.rows[0]?.map((cell) => <span class={cell.style}>{cell.text}</span>)}</h1>
      {answer.state === "healthy" && answer.since != null && (
        <p class="muted">
          since {moment(answer.since)}
          {answer.until != null && answer.until !== answer.since && <>, the last run at {moment(answer.until)}</>}
        </p>
      )}
      {told.length > 0 && (
        <dl>
          {told.map(([label, blocks]) => (
            <>
              <dt>{label}</dt>
              <dd>
                {blocks.map((block) => (
                  <Shown block={block} links={answer.links ?? {}} />
                ))}
              </dd>
            </>
          ))}
        </dl>
      )}
      {answer.report && answer.report.notices.length > 0 && (
        <ul class="notices">
          {answer.report.notices.map((notice) => (
            <li>{notice}</li>
          ))}
        </ul>
      )}
      {commands.length > 0 && (
        <details class="commands">
          <summary>In a terminal</summary>
          {commands.map((block) => (
            <p>
              <code>{block.rows[0]?.[0]?.text}</code> <Copy text={block.rows[0]?.[0]?.text ?? ""} />
            </p>
          ))}
        </details>
      )}
      {answer.searching && <p class="muted">New runs are being looked through…</p>}
    </section>
  );
}

/** Blocks without a label go on with the one before. */
function grouped(blocks: Block[]): [string, Block[]][] {
  const found: [string, Block[]][] = [];
  for (const block of blocks) {
    const last = found[found.length - 1];
    if (!block.label && last) last[1].push(block);
    else found.push([block.label, [block]]);
  }
  return found;
}

function Shown({ block, links }: { block: Block; links: Record<string, Link> }) {
  if (block.kind === "code") return <pre class="line">{block.rows[0]?.[0]?.text}</pre>;
  return (
    <>
      {block.rows.map((row) => (
        <p class={block.kind}>
          {row.map((cell) => (
            <Piece cell={cell} links={links} />
          ))}
        </p>
      ))}
    </>
  );
}

function Piece({ cell, links }: { cell: Cell; links: Record<string, Link> }) {
  const address = useAddress();
  const link = links[cell.text];
  if (!link) return <span class={cell.style}>{cell.text} </span>;
  const { run } = link;
  if (link.kind === "source") {
    return <SourceLink file={link.name} line={link.line ?? 1} run={run} rank={link.rank} label={cell.text} />;
  }
  if (link.kind === "node") {
    return (
      <>
        <TensorLink name={`${link.name}:0`} run={run} rank={link.rank} label={cell.text} />{" "}
        <a class="also" href={address("graph", { name: link.name, run, rank: link.rank })}>
          graph
        </a>{" "}
      </>
    );
  }
  return (
    <>
      <TensorLink name={link.name} run={run} rank={link.rank} />{" "}
    </>
  );
}

/** The number of a run, out of the name of its directory. */
export function runNumber(name: string): string {
  return /_(\d+)$/.exec(name)?.[1] ?? name;
}
