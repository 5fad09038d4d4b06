// The one client of the HTTP interface. In a report that stands alone, answers come out of the file instead.
import { Embedded } from "./embedded";
import type * as T from "./types";

const TOKEN = "tensortap-token";

/** The server refused, or there is none (status 0). */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

export interface RunPlace {
  job: string;
  run: string;
  task?: number | null;
}

type Query = Record<string, string | number | null | undefined>;

export class Client {
  constructor(readonly embedded: Embedded | null = null) {}

  get isReport(): boolean {
    return this.embedded !== null;
  }

  server = () => this.get<T.ServerFacts>("/api/server");
  jobs = () => this.get<{ jobs: T.Job[] }>("/api/jobs");
  answer = (job: string) => this.get<T.Answer>(`${at(job)}/answer`);
  findings = (job: string) => this.get<T.Findings>(`${at(job)}/findings`);
  grid = (job: string, task?: number | null) => this.get<T.Grid>(`${at(job)}/grid`, { task });
  ranks = (job: string) => this.get<T.Ranks>(`${at(job)}/ranks`);
  traces = (job: string) => this.get<T.Traces>(`${at(job)}/traces`);
  trace = (job: string, id: number) => this.get<T.Trace>(`${at(job)}/traces/${id}`);
  gates = (job: string) => this.get<T.Gates>(`${at(job)}/gates`);
  breakpoints = (job: string) => this.get<T.Breakpoints>(`${at(job)}/breakpoints`);

  history = (job: string, tensor: string, task: number | null | undefined, points: number) =>
    this.get<T.History>(`${at(job)}/health`, { tensor, task, points });

  node = (place: RunPlace, name: string, depth: number) =>
    this.get<T.Neighbours>(`${inRun(place)}/node`, { name, depth, task: place.task });

  sourceFiles = (place: RunPlace) => this.get<T.SourceFiles>(`${inRun(place)}/lines`, { task: place.task });

  sourceMarks = (place: RunPlace, path: string) =>
    this.get<T.SourceMarks>(`${inRun(place)}/lines`, { path, task: place.task });

  sourceText = (place: RunPlace, path: string) =>
    this.get<T.SourceText>(`${inRun(place)}/source`, { path, task: place.task });

  value = (place: RunPlace, tensor: string, execution: number) =>
    this.get<T.Value>(`${inRun(place)}/value`, { tensor, execution, task: place.task });

  picture = (place: RunPlace, tensor: string, execution: number, other?: RunPlace) =>
    this.get<T.Picture>(`${inRun(place)}/picture`, {
      tensor,
      execution,
      task: place.task,
      other_job: other?.job,
      other_run: other?.run,
      other_task: other?.task,
    });

  async tile(job: string, asked: T.TileRequest): Promise<T.Tile> {
    if (this.embedded) return this.embedded.tile(asked);
    return this.send<T.Tile>("POST", `${at(job)}/grid`, asked);
  }

  setGate = (job: string, watchKey: string, state: string) =>
    this.send<T.Gates>("PUT", `${at(job)}/gates`, { watch_keys: [watchKey], state });

  release = (job: string, id: number, value?: unknown) =>
    this.send<{ released: number; replaced: boolean }>(
      "POST",
      `${at(job)}/breakpoints/${id}/release`,
      value === undefined ? {} : { value },
    );

  /** The bytes of a value as a NumPy file. */
  npy = (place: RunPlace, tensor: string, execution: number) =>
    this.bytes(`${inRun(place)}/value${asText({ tensor, execution, task: place.task, format: "npy" })}`);

  traceFile = (job: string, id: number) => this.bytes(`${at(job)}/traces/${id}/file`);

  /** The stream of changes; ends with the connection. */
  async *events(job: string | null, signal: AbortSignal): AsyncGenerator<T.State> {
    const answer = await this.fetch(`/api/events${asText({ job })}`, { signal });
    const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop() ?? "";
      for (const part of parts) {
        if (part.startsWith("data: ")) yield JSON.parse(part.slice(6)) as T.State;
      }
    }
  }

  /** Remember what the user typed; it goes into a header, never into an address. */
  useToken(token: string): void {
    localStorage.setItem(TOKEN, token);
  }

  private async get<A>(path: string, query: Query = {}): Promise<A> {
    const address = path + asText(query);
    if (this.embedded) return this.embedded.answer<A>(address);
    return (await this.fetch(address)).json() as Promise<A>;
  }

  private async send<A>(method: string, path: string, body: unknown): Promise<A> {
    if (this.embedded) throw new Refused(0, "A report is only to be looked at.");
    const answer = await this.fetch(path, {
      method,
      body: JSON.stringify(body),
      headers: { "content-type": "application/json" },
    });
    return answer.json() as Promise<A>;
  }

  private async bytes(address: string): Promise<ArrayBuffer> {
    if (this.embedded) throw new Refused(0, "Files are not part of a report; `tensortap view DIR` has them.");
    return (await this.fetch(address)).arrayBuffer();
  }

  private async fetch(address: string, options: RequestInit = {}): Promise<Response> {
    const headers = new Headers(options.headers);
    const token = localStorage.getItem(TOKEN);
    if (token) headers.set("authorization", `Bearer ${token}`);
    let answer: Response;
    try {
      answer = await fetch(address, { ...options, headers, credentials: "omit", referrerPolicy: "no-referrer" });
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new Refused(0, "The server does not answer.");
    }
    if (!answer.ok) throw new Refused(answer.status, await reason(answer));
    return answer;
  }
}

async function reason(answer: Response): Promise<string> {
  try {
    return ((await answer.json()) as { error: string }).error;
  } catch {
    return `The server answered ${answer.status}.`;
  }
}

function at(job: string): string {
  return `/api/jobs/${encodeURIComponent(job)}`;
}

function inRun(place: RunPlace): string {
  return `${at(place.job)}/runs/${encodeURIComponent(place.run)}`;
}

function asText(query: Query): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  if (!given.length) return "";
  return `?${given.map(([key, value]) => `${key}=${encodeURIComponent(String(value))}`).join("&")}`;
}
