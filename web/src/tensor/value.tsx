// The value of a tensor at one run, as heat map, image, table or histogram; beside that of another run.
import { useEffect, useState } from "preact/hooks";
import type { RunPlace } from "../api/client";
import type { Job, Pictured } from "../api/types";
import { useHere, useLoaded, useParams } from "../app/context";
import { Choice, Loading, Problem, save } from "../parts/parts";
import { asNumber, baseName, count, short } from "../parts/text";
import { HeatMap } from "./heatmap";
import { HistogramChart } from "./histogram";
import { ImageShown, isImage } from "./image";
import { ValueTable } from "./table";

type Look = "heat" | "image" | "table" | "histogram";

export function ValueCard({ place, name, version }: { place: RunPlace; name: string; version: number }) {
  const { client, job, params } = useHere();
  const change = useParams();
  const slices = params.slice ?? "";
  const [typed, setTyped] = useState(slices);
  useEffect(() => setTyped(slices), [slices]);
  const execution = Number(params.execution ?? -1);
  const asked = slices ? `${name}[${slices}]` : name;
  const other = otherPlace(params, job);
  const { data, problem, isLoading } = useLoaded(
    () => client.picture(place, asked, execution, other ?? undefined),
    [client, place, asked, execution, other?.job, other?.run, other?.task, place.run === "last" ? version : 0],
  );
  const [failed, setFailed] = useState("");
  const download = () => {
    client.npy(place, asked, execution).then(
      (content) => save(content, `${baseName(name).replace(/\W+/g, "_")}_run${place.run}.npy`),
      (error: Error) => setFailed(error.message),
    );
  };
  const options: [Look, string][] = [
    ["heat", "Heat map"],
    ["table", "Table"],
    ["histogram", "Histogram"],
  ];
  if (data && isImage(data.shape)) options.splice(1, 0, ["image", "Image"]);
  const look = options.find(([each]) => each === params.look)?.[0] ?? "heat";
  const leading = data ? data.shape.length - 2 : 0;
  return (
    <section class="card" aria-label="Value">
      <div class="bar">
        <h2>
          Value at run {place.run}
          {place.task != null && <span class="muted"> of rank {place.task}</span>}
        </h2>
        {data && (
          <span class="muted mono">
            {data.dtype} [{data.shape.join(", ")}]
          </span>
        )}
        {isLoading && <span class="spinner" />}
        <span class="space" />
        {data && (
          <>
            <label class="muted">
              slice{" "}
              <input
                class="slice mono"
                value={typed}
                placeholder={data.shape.map(() => ":").join(", ") || "…"}
                aria-label="Slice, such as 0, -1, ::2"
                onInput={(event) => setTyped(event.currentTarget.value)}
                onKeyDown={(event) => event.key === "Enter" && change({ slice: typed.replace(/^\[|\]$/g, "") })}
                onBlur={() => change({ slice: typed.replace(/^\[|\]$/g, "") })}
              />
            </label>
            {data.executions > 1 && (
              <label class="muted">
                execution{" "}
                <select value={String(execution)} onChange={(event) => change({ execution: event.currentTarget.value })}>
                  <option value="-1">last</option>
                  {Array.from({ length: Math.min(data.executions, 500) }, (_, each) => (
                    <option value={String(each)}>{each}</option>
                  ))}
                </select>
              </label>
            )}
            <Choice label="Look" value={look} options={options} choose={(next) => change({ look: next === "heat" ? null : next })} />
            {!client.isReport && (
              <button type="button" onClick={download}>
                Download .npy
              </button>
            )}
          </>
        )}
      </div>
      {failed && <Problem text={failed} />}
      {problem && !data && <NoValue problem={problem} />}
      {problem && data && <Problem text={problem} />}
      {!data && !problem && <Loading what="Reading the value…" />}
      {data && leading > 0 && (
        <p class="muted small">
          The first of {count(data.shape.slice(0, leading).reduce((a, b) => a * b, 1))} matrices is shown; a slice such as{" "}
          <code>{[...Array.from({ length: leading }, () => "0"), ":", ":"].join(", ")}</code> chooses another.
        </p>
      )}
      {data && (
        <div class={`values${other ? " beside" : ""}`}>
          <Shown pictured={data} look={look} place={place} name={asked} execution={execution} title={other ? `run ${place.run}` : ""} />
          {other && data.other && (
            <Shown pictured={data.other} look={look} place={other} name={asked} execution={execution} title={titleOf(other, job)} />
          )}
          {other && data.difference && ("problem" in data.difference ? (
            <Problem text={data.difference.problem} />
          ) : (
            <Shown pictured={data.difference} look={look === "table" || look === "image" ? "heat" : look} place={null} name={asked} execution={execution} title="difference" isDifference />
          ))}
        </div>
      )}
      {!client.isReport && <CompareForm place={place} />}
    </section>
  );
}

function NoValue({ problem }: { problem: string }) {
  return (
    <div class="novalue">
      <p>{problem}</p>
      <p class="muted">
        Values are kept of operations that make something bad. <code>tensortap run --values PATTERN</code> keeps more,
        and on a job that streams a gate opens them.
      </p>
    </div>
  );
}

function Shown(props: {
  pictured: Pictured;
  look: Look;
  place: RunPlace | null;
  name: string;
  execution: number;
  title: string;
  isDifference?: boolean;
}) {
  const { pictured, look } = props;
  return (
    <figure>
      {props.title && <figcaption>{props.title}</figcaption>}
      {look === "table" && props.place ? (
        <ValueTable place={props.place} name={props.name} execution={props.execution} pictured={pictured} />
      ) : look === "histogram" ? (
        <HistogramChart pictured={pictured} />
      ) : look === "image" && isImage(pictured.shape) && props.place ? (
        <ImageShown place={props.place} name={props.name} execution={props.execution} shape={pictured.shape} />
      ) : (
        <HeatMap pictured={pictured} isDiverging={props.isDifference ?? false} />
      )}
      <Numbers pictured={pictured} />
    </figure>
  );
}

function Numbers({ pictured }: { pictured: Pictured }) {
  const found = pictured.summary;
  if (!found) return null;
  const bad = [
    [found.nan, "NaN"],
    [found.neg_inf, "−inf"],
    [found.pos_inf, "+inf"],
  ].filter(([number]) => number) as [number, string][];
  return (
    <p class="under muted">
      {(["min", "max", "mean", "std"] as const).map((each) => (
        <span>
          {each} {found[each] === null ? "–" : short(asNumber(found[each]))}
        </span>
      ))}
      <span>{count(found.elements)} elements</span>
      {bad.map(([number, kind]) => (
        <b class="bad-text">
          {count(number)} {kind}
        </b>
      ))}
    </p>
  );
}

function otherPlace(params: Record<string, string>, job: string): RunPlace | null {
  if (params.vs === undefined) return null;
  return {
    job: params.vsjob ?? job,
    run: params.vs,
    task: params.vsrank === undefined ? undefined : Number(params.vsrank),
  };
}

function titleOf(other: RunPlace, job: string): string {
  const rank = other.task == null ? "" : `, rank ${other.task}`;
  return `${other.job === job ? "" : `${other.job}, `}run ${other.run}${rank}`;
}

function CompareForm({ place }: { place: RunPlace }) {
  const { client, job, params } = useHere();
  const change = useParams();
  const [jobs, setJobs] = useState<Job[]>([]);
  const [run, setRun] = useState(params.vs ?? "");
  const isOpen = params.vs !== undefined;
  useEffect(() => {
    client.jobs().then(
      (found) => setJobs(found.jobs),
      () => undefined,
    );
  }, [client]);
  const chosen = jobs.find((each) => each.id === (params.vsjob ?? job));
  const compare = (event: Event) => {
    event.preventDefault();
    if (run !== "") change({ vs: run });
  };
  return (
    <form class="bar compare" onSubmit={compare}>
      <span class="muted">Beside</span>
      {jobs.length > 1 && (
        <select aria-label="Session" value={params.vsjob ?? job} onChange={(event) => change({ vsjob: event.currentTarget.value, vs: run || place.run })}>
          {jobs.map((each) => (
            <option value={each.id}>{each.id === job ? "this session" : each.name}</option>
          ))}
        </select>
      )}
      <label class="muted">
        run <input class="run" inputMode="numeric" value={run} placeholder={place.run} onInput={(event) => setRun(event.currentTarget.value.trim())} />
      </label>
      {(chosen?.tasks.length ?? 0) > 1 && (
        <label class="muted">
          rank{" "}
          <select value={params.vsrank ?? ""} onChange={(event) => change({ vsrank: event.currentTarget.value, vs: run || place.run })}>
            <option value="">any</option>
            {chosen!.tasks.map((task) => (
              <option value={String(task)}>{task}</option>
            ))}
          </select>
        </label>
      )}
      <button type="submit">Compare</button>
      {isOpen && (
        <button type="button" class="quiet" onClick={() => change({ vs: null, vsjob: null, vsrank: null })}>
          Close
        </button>
      )}
    </form>
  );
}
