// The answers of the HTTP interface. `tests/page/test_types.py` holds real answers against these.

export interface ServerFacts {
  version: string;
  is_live: boolean;
  started: number;
  now: Record<string, number>;
  address?: string;
  root?: string;
  counts?: Record<string, number>;
  limits?: Record<string, unknown>;
  breakpoint_timeout?: number;
}

export interface Job {
  id: string;
  name: string;
  is_live: boolean;
  directory: string;
  runs: number;
  receiving: number;
  tasks: number[];
  newest_run: string | null;
  gates: number;
  waiting_at_breakpoints: number;
  alerts: number;
}

export interface State {
  jobs: number;
  job?: string;
  runs?: number;
  receiving?: number;
  answer?: number;
  searching?: boolean;
  findings?: number;
  grid?: number;
  grid_progress?: number;
  alerts?: number;
  gates?: number;
  waiting?: number[];
}

/** A number; NaN and infinities, which JSON does not have, are text. */
export type Num = number | string;

export interface Cell {
  text: string;
  style: string;
}

export interface Block {
  kind: string;
  label: string;
  rows: Cell[][];
}

export interface Link {
  kind: string;
  name: string;
  run: string;
  rank: number;
  line?: number;
}

export interface HealthFacts {
  status: string;
  text?: string;
  elements?: number;
  nan?: number;
  neg_inf?: number;
  negative?: number;
  zero?: number;
  positive?: number;
  pos_inf?: number;
  min?: Num | null;
  max?: Num | null;
  mean?: Num | null;
  std?: Num | null;
  dtype?: string | null;
  shape?: number[] | null;
}

export interface Finding {
  run: number;
  step: number;
  rank: number;
  run_name: string;
  timestamp: number;
  node: string;
  tensor: string;
  op_type: string;
  phase: string;
  module: string | null;
  source: { file: string; line: number; function: string; text: string | null } | null;
  stack: string[];
  cause: string;
  cause_kind: string;
  proof: string[];
  advice: string;
  inputs: { tensor: string; health: HealthFacts; part_of: string | null }[];
  output: { tensor: string; health: HealthFacts };
  is_certain: boolean;
  origin: { text: string; run: number | null; node: string | null } | null;
  came_by: string | null;
  parts: string[];
  arrivals: { rank: number; run: number; step: number; collective: string; words: string }[];
  during: string | null;
  reached: string[];
  propagators: string[];
  spread?: number;
}

export interface Report {
  directory: string;
  first_bad: Finding | null;
  propagators: string[];
  findings: Finding[];
  contained: Finding[];
  intended: number;
  runs: number;
  ranks: number[];
  tensors: number;
  not_looked_at: string[];
  later_bad_runs: number[];
  healthy: boolean;
  coverage: Record<string, unknown>;
  notices: string[];
}

export interface Answer {
  version: number;
  searching: boolean;
  runs: number;
  state: "bad" | "healthy" | "unsure" | "unknown" | "empty" | "searching" | "problem";
  problem: string;
  card?: Block[];
  links?: Record<string, Link>;
  text?: string;
  since?: number | null;
  until?: number | null;
  unread?: string;
  report?: Report;
}

export interface CheckFinding {
  kind: string;
  subject: string;
  step: number;
  file: string | null;
  line: number | null;
  certainty: string;
  sentence: string;
  evidence: Record<string, unknown>;
  try: string;
  rank: number;
  function: string;
  place: string;
}

export interface Findings {
  version: number;
  findings: CheckFinding[];
  left_out: number;
}

export interface Grid {
  task: number | null;
  tasks: number[];
  version: number;
  progress: number;
  columns: number;
  stride: number;
  runs: number;
  tensors: string[];
  dtypes: string[];
  phases: string[];
  first_bad: (number | null)[];
  left_out: number;
  notices: string[];
}

/** Which tensors a row of the picture joins: ranges of places in `Grid.tensors`. */
export type Ranges = [number, number][];

export interface TileRequest {
  task: number | null;
  rows: Ranges[];
  from: number;
  to: number;
  columns: number;
}

export interface Tile {
  version: number;
  edges: number[];
  runs: number[];
  steps: number[];
  kinds: string;
  sizes: string;
  zeros: string;
}

export interface History {
  tensor: string;
  total: number;
  columns: Record<string, Num[]>;
  notices: string[];
}

export interface Summary {
  elements: number;
  nan: number;
  neg_inf: number;
  negative: number;
  zero: number;
  positive: number;
  pos_inf: number;
  min: Num | null;
  max: Num | null;
  mean: Num | null;
  std: Num | null;
}

export interface Pictured {
  dtype: string;
  shape: number[];
  shown: number[];
  rows: number;
  columns: number;
  means: string;
  kinds: string;
  is_whole: boolean;
  most: number;
  histogram: { edges: number[]; counts: number[]; is_sampled: boolean } | null;
  summary: Summary | null;
}

export interface Picture extends Pictured {
  tensor: string;
  executions: number;
  other?: Pictured;
  difference?: Pictured | { problem: string };
}

export type Nested = Num | boolean | Nested[];

export interface Value {
  tensor: string;
  debug_op: string;
  device: string;
  timestamp: number;
  dtype: string;
  shape: number[] | null;
  bytes: number | null;
  executions: number;
  value: Nested | null;
  value_shape?: number[];
  note?: string;
  pill?: Record<string, unknown>;
}

export interface BriefNode {
  name: string;
  op: string;
  phase: string;
  module: string | null;
  distance: number;
  health: string;
  text: string;
  tensor: string;
  source: { file: string; line: number } | null;
}

export interface WholeNode extends BriefNode {
  device: string;
  inputs: { tensor: string; health: string }[];
  outputs: { tensor: string; health: string }[];
  stack: { file: string; line: number; function: string }[];
  attributes: Record<string, string>;
}

export interface Edge {
  from: string;
  to: string;
  tensor: string;
  control: boolean;
}

export interface Neighbours {
  node: WholeNode;
  nodes: BriefNode[];
  edges: Edge[];
  left_out: number;
  path: string[];
}

export interface SourceFiles {
  files: { path: string; nodes: number; bad: number }[];
}

export interface SourceMarks {
  path: string;
  lines: { line: number; nodes: { name: string; op: string; bad: boolean }[] }[];
}

export interface SourceText {
  path: string;
  text: string;
}

export interface RankDifference {
  tensor: string;
  debug_op: string;
  execution: number;
  run: number;
  step: number;
  equal_runs: number;
  odd_ranks: number[];
  values: Record<string, unknown>;
  timestamp: number;
}

export interface Ranks {
  ranks: number[];
  runs: number;
  equal: number;
  diverged: RankDifference[];
  different: RankDifference[];
  missing: Record<string, number[]>;
  notices: string[];
}

export interface Traces {
  traces: { id: number; name: string; bytes: number }[];
}

export interface Slow {
  name: string;
  micros: number;
  calls: number;
  share: number;
}

export interface Trace {
  name: string;
  step: number | null;
  rank: number | null;
  micros: number;
  busy_micros: number;
  left_out: string[];
  slowest: { ops: Slow[]; nodes: Slow[]; lines: Slow[] };
  peaks: {
    allocator: string;
    bytes: number;
    micros: number;
    count: number;
    tensors: { name: string; bytes: number }[];
  }[];
  memory: Record<string, { micros: number[]; bytes: number[] }>;
}

export interface Gates {
  gates: { watch_key: string; state: string }[];
  gated: string[];
}

export interface Waiting {
  id: number;
  run: string;
  task: number;
  watch_key: string;
  device: string;
  dtype: string;
  shape: number[] | null;
  since: number;
  first_elements: Num[];
  health: string;
}

export interface Breakpoints {
  waiting: Waiting[];
}
