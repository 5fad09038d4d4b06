// The frame around all views: which job, which view, whether the server is there.
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { AnswerCard } from "../answer/answer";
import { FindingsCard } from "../answer/findings";
import { type Client, Refused } from "../api/client";
import { type Connection, Live } from "../api/live";
import type { Job, ServerFacts, State } from "../api/types";
import { ControlView } from "../control/control";
import { GraphView } from "../graph/graph";
import { GridView } from "../grid/grid";
import { Empty, Loading, Problem } from "../parts/parts";
import { many } from "../parts/text";
import { RanksView } from "../ranks/ranks";
import { SourceView } from "../source/source";
import { TensorView } from "../tensor/tensor";
import { TimelinesView } from "../timelines/timelines";
import { Here } from "./context";
import { Keys } from "./keys";
import { addressOf, go, usePlace } from "./router";
import { nextTheme, theme } from "./theme";
import { TokenForm } from "./token";

const VIEWS: [string, string, string][] = [
  ["overview", "Overview", "o"],
  ["tensor", "Tensor", "t"],
  ["graph", "Graph", "g"],
  ["source", "Source", "s"],
  ["ranks", "Ranks", "r"],
  ["timelines", "Timelines", "l"],
  ["control", "Control", "c"],
];

export function App({ client }: { client: Client }) {
  const place = usePlace();
  const [server, setServer] = useState<ServerFacts | null>(null);
  const [jobs, setJobs] = useState<Job[] | null>(null);
  const [state, setState] = useState<State>({ jobs: 0 });
  const [connection, setConnection] = useState<Connection>("connecting");
  const [problem, setProblem] = useState("");
  const [isLocked, setLocked] = useState(false);
  const [attempt, setAttempt] = useState(0);

  const load = useCallback(async () => {
    try {
      const [facts, found] = await Promise.all([client.server(), client.jobs()]);
      setServer(facts);
      setJobs(found.jobs);
      setProblem("");
    } catch (error) {
      if (error instanceof Refused && error.status === 401) setLocked(true);
      else setProblem(error instanceof Error ? error.message : String(error));
    }
  }, [client, attempt]);

  useEffect(() => void load(), [load]);
  const isConnected = connection === "live";
  const isKnown = jobs !== null && jobs.length === state.jobs;
  useEffect(() => {
    if (isConnected && !isKnown && jobs !== null) void load();
  }, [isConnected, isKnown, state.jobs]);
  const wasLost = useRef(false);
  useEffect(() => {
    if (isConnected && wasLost.current) void load(); // another server, perhaps
    wasLost.current = connection === "lost";
  }, [connection]);

  const known = jobs?.find((job) => job.id === place.job);
  const job = known?.id ?? (place.job === null ? (jobs?.[0]?.id ?? null) : null);
  useEffect(() => {
    if (place.job === null && job !== null) go(addressOf(job, place.view, place.params), true);
  }, [place.job, job]);

  const live = useRef<Live | null>(null);
  useEffect(() => {
    if (client.isReport || isLocked) return;
    const following = new Live(client, setState, (now, message) => {
      setConnection(now);
      if (now === "locked") setLocked(true);
      else if (now === "lost") setProblem(message);
    });
    live.current = following;
    return () => following.end();
  }, [client, attempt, isLocked]);
  useEffect(() => live.current?.follow(place.job), [client, place.job, attempt, isLocked]);

  const context = useMemo(
    () => ({
      client,
      job: job ?? "",
      params: place.params,
      view: place.view,
      state,
      isLive: known?.is_live ?? false,
    }),
    [client, job, place, state, known?.is_live],
  );

  if (isLocked) {
    const unlock = (token: string) => {
      client.useToken(token);
      setLocked(false);
      setAttempt(attempt + 1);
    };
    return <TokenForm isSecond={attempt > 0} unlock={unlock} />;
  }
  const views = VIEWS.filter(([view]) => view !== "control" || known?.is_live);
  return (
    <Here.Provider value={context}>
      <a class="skip" href="#main" onClick={skip}>
        Skip to the view
      </a>
      <header class="top">
        <a class="brand" href={addressOf(job, "overview")}>
          tensortap
        </a>
        <JobSelect jobs={jobs ?? []} job={job} view={place.view} />
        <nav aria-label="Views">
          {views.map(([view, title, key]) => (
            <a
              key={view}
              href={addressOf(job, view, view === place.view ? place.params : carried(place.params))}
              aria-current={view === place.view ? "page" : undefined}
              title={`${title} (${key})`}
            >
              {title}
              {view === "control" && (state.waiting?.length ?? 0) > 0 && (
                <span class="badge">{state.waiting!.length}</span>
              )}
            </a>
          ))}
        </nav>
        <span class="space" />
        {!client.isReport && <ConnectionSign connection={connection} isLive={known?.is_live ?? false} state={state} />}
        <ThemeButton />
        <Keys views={views} job={job} params={place.params} />
      </header>
      {connection === "lost" && !client.isReport && (
        <div class="banner" role="alert">
          The server does not answer. What you see is the last it said; the page goes on by itself when it is back.
        </div>
      )}
      <main id="main" tabIndex={-1}>
        {jobs === null ? (
          problem ? (
            <Problem text={problem} />
          ) : (
            <Loading what="Asking the server…" />
          )
        ) : jobs.length === 0 ? (
          <NoJobs server={server} />
        ) : job === null ? (
          <Problem text={`There is no job ${place.job ?? ""} here.`} />
        ) : state.job !== job && !client.isReport && connection !== "lost" ? (
          <Loading what="Asking the server…" />
        ) : (
          <View key={job} view={place.view} />
        )}
      </main>
    </Here.Provider>
  );
}

function View({ view }: { view: string }) {
  switch (view) {
    case "overview":
      return (
        <>
          <AnswerCard />
          <FindingsCard />
          <GridView />
        </>
      );
    case "tensor":
      return <TensorView />;
    case "graph":
      return <GraphView />;
    case "source":
      return <SourceView />;
    case "ranks":
      return <RanksView />;
    case "timelines":
      return <TimelinesView />;
    case "control":
      return <ControlView />;
    default:
      return <Problem text={`There is no view ${view}.`} />;
  }
}

/** What other views take along: which tensor, and which run of it. */
function carried(params: Record<string, string>): Record<string, string | undefined> {
  const { name, run, rank } = params;
  return { name, run, rank };
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function JobSelect({ jobs, job, view }: { jobs: Job[]; job: string | null; view: string }) {
  if (jobs.length < 2) {
    return <span class="job">{jobs[0]?.name}</span>;
  }
  return (
    <select
      class="job"
      aria-label="Job"
      value={job ?? ""}
      onChange={(event) => go(addressOf(event.currentTarget.value, view === "tensor" ? "overview" : view))}
    >
      {jobs.map((each) => (
        <option key={each.id} value={each.id}>
          {each.name}
          {each.waiting_at_breakpoints ? " (waits)" : each.alerts ? " (bad values)" : ""}
        </option>
      ))}
    </select>
  );
}

function ConnectionSign(props: { connection: Connection; isLive: boolean; state: State }) {
  const { connection, isLive, state } = props;
  const words = {
    connecting: "connecting…",
    live: isLive ? (state.receiving ? "receiving" : "live") : "recorded",
    lost: "server lost",
    locked: "locked",
  };
  return (
    <span class={`connection ${connection}`} role="status">
      <span class="dot" />
      {words[connection]}
      {state.runs !== undefined && connection === "live" && <span class="muted"> · {many(state.runs, "run")}</span>}
    </span>
  );
}

function ThemeButton() {
  const [now, setNow] = useState(theme());
  const signs = { system: "◐", light: "☀", dark: "☾" };
  return (
    <button type="button" class="quiet" title={`Colours: ${now}`} onClick={() => setNow(nextTheme())}>
      <span aria-hidden="true">{signs[now]}</span>
      <span class="hidden">Colours: {now}</span>
    </button>
  );
}

function NoJobs({ server }: { server: ServerFacts | null }) {
  return (
    <Empty title="Nothing was received yet">
      <p>Jobs that stream to this server appear here by themselves. To begin, start one of these:</p>
      <pre>
        {`tensortap run --stream grpc://${server?.address ?? "127.0.0.1:6064"} train.py\n\n`}
        {`hook = tt.GrpcDebugHook("${server?.address ?? "127.0.0.1:6064"}")`}
      </pre>
    </Empty>
  );
}
