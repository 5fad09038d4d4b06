// The health grid: tensors in rows, runs in columns. The server sends what the pixels need.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Grid, TileRequest } from "../api/types";
import { useAddress, useHere, useLoaded, useParams } from "../app/context";
import { go } from "../app/router";
import { Choice, Empty, Loading, Problem, useSize } from "../parts/parts";
import { count, many } from "../parts/text";
import { describe } from "./cells";
import { Legend } from "./legend";
import { Cells, type Mode, Palette, paint } from "./paint";
import { Strip } from "./strip";
import { type Row, Tree, filtered, listed, ranges } from "./tree";

const ROW = 19;
const OVERSCAN = 12;
const LEAST_COLUMNS = 8;

export function GridView() {
  const { client, job, state, params } = useHere();
  const task = params.rank === undefined ? null : Number(params.rank);
  const { data, problem } = useLoaded(() => client.grid(job, task), [client, job, task, state.grid, state.answer]);
  if (!data) return problem ? <Problem text={problem} /> : <Loading what="Reading the health of all runs…" />;
  if (!data.tensors.length) {
    if ((state.grid_progress ?? 1) < 1) return <Loading what="Reading the health of all runs…" />;
    return (
      <Empty title="No health to show">
        <p>No tensor of these runs has a recorded health, NaN count or value.</p>
      </Empty>
    );
  }
  return <HealthGrid grid={data} />;
}

function HealthGrid({ grid }: { grid: Grid }) {
  const { client, job, params, state } = useHere();
  const change = useParams();
  const address = useAddress();
  const [chosen, setChosen] = useState(0);
  const [hover, setHover] = useState<{ row: number; column: number; x: number; y: number } | null>(null);
  const [theme, setTheme] = useState(0);
  const [cells, setCells] = useState<Cells | null>(null);
  const [scroll, setScroll] = useState(0);
  const [attach, width, height] = useSize();
  const canvas = useRef<HTMLCanvasElement>(null);
  const scroller = useRef<HTMLDivElement>(null);

  const mode: Mode = params.colour === "zeros" ? "zeros" : "size";
  const filter = { name: params.filter ?? "", phase: params.phase ?? "", dtype: params.dtype ?? "", bad: params.only === "bad" };
  const tensors = useMemo(() => filtered(grid, filter), [grid, filter.name, filter.phase, filter.dtype, filter.bad]);
  const tree = useMemo(() => new Tree(grid, tensors), [grid, tensors]);
  const opened = useMemo(() => {
    const open = new Set([...tree.opened(), ...named(params.open)]);
    for (const each of named(params.closed)) open.delete(each);
    return open;
  }, [tree, params.open, params.closed]);
  const rows = useMemo(
    () => (params.sort === "bad" ? listed(grid, tensors) : tree.rows(opened)),
    [grid, tensors, tree, opened, params.sort],
  );

  const from = clamp(Number(params.from ?? 0), 0, Math.max(grid.columns - 1, 0));
  const to = clamp(Number(params.to ?? grid.columns), from + 1, Math.max(grid.columns, from + 1));
  const isWhole = params.from === undefined && params.to === undefined;
  const shownRows = Math.max(1, Math.ceil(height / ROW));
  const firstRow = Math.floor(scroll / ROW);

  useEffect(() => {
    const changed = () => setTheme((before) => before + 1);
    addEventListener("themechange", changed);
    const media = matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", changed);
    return () => {
      removeEventListener("themechange", changed);
      media.removeEventListener("change", changed);
    };
  }, []);
  const palette = useMemo(() => new Palette(), [theme]);

  // One request at a time; when it is answered, the next asks for what is shown by then.
  const wanted = useRef<{ asked: TileRequest; firstRow: number; key: string } | null>(null);
  const isAsking = useRef(false);
  const got = useRef("");
  const firstAsked = Math.max(0, firstRow - OVERSCAN);
  const askedRows = rows.slice(firstAsked, firstRow + shownRows + OVERSCAN);
  const margin = (to - from) / 2;
  const asked: TileRequest = {
    task: grid.task,
    rows: askedRows.map((row) => ranges(row.tensors)),
    from: Math.max(0, Math.floor(from - margin)),
    to: Math.min(grid.columns, Math.ceil(to + margin)),
    columns: Math.max(1, Math.min(4096, 2 * width)),
  };
  const key = JSON.stringify([asked.from, asked.to, asked.columns, firstAsked, grid.version, askedRows.map((r) => r.key)]);
  wanted.current = { asked, firstRow: firstAsked, key };
  useEffect(() => {
    if (!width || isAsking.current) return;
    const ask = async () => {
      isAsking.current = true;
      try {
        while (wanted.current && wanted.current.key !== got.current) {
          const now = wanted.current;
          const tile = await client.tile(job, now.asked);
          got.current = now.key;
          setCells(new Cells(tile, now.firstRow, now.asked.rows.length));
        }
      } catch {
        got.current = ""; // the banner says that the server is away; asked again when it is back
      } finally {
        isAsking.current = false;
      }
    };
    void ask();
  }, [key, width, state]);

  useEffect(() => {
    if (!cells || !canvas.current || !width) return;
    const frame = { from, to, firstRow, rows: Math.min(shownRows, rows.length - firstRow), rowHeight: ROW, mode };
    paint(canvas.current, cells, frame, palette);
    if (!canvas.current.dataset.painted) performance.mark("grid first painted");
    canvas.current.dataset.painted = "yes";
    if (got.current === wanted.current?.key) {
      performance.clearMarks("grid painted");
      performance.mark("grid painted");
    }
  }, [cells, from, to, firstRow, shownRows, rows, width, height, mode, palette]);

  const rangeOf = (begin: number, end: number) => {
    const size = Math.min(grid.columns, Math.max(LEAST_COLUMNS, Math.round(end - begin)));
    const first = clamp(Math.round(begin), 0, Math.max(0, grid.columns - size));
    return size >= grid.columns ? { from: null, to: null } : { from: first, to: first + size };
  };
  const setRange = (begin: number, end: number) => change(rangeOf(begin, end));
  const zoom = (factor: number, at = 0.5) => {
    const middle = from + (to - from) * at;
    setRange(middle - (middle - from) * factor, middle + (to - middle) * factor);
  };
  const toggle = (row: Row) => {
    change(row.isOpen ? folded([], [row.key]) : folded([row.key], []));
  };
  // What is folded other than at first is in the address.
  const folded = (open: string[], closed: string[]) => ({
    open: [...new Set([...named(params.open), ...open])].filter((each) => !closed.includes(each)).join("\n"),
    closed: [...new Set([...named(params.closed), ...closed])].filter((each) => !open.includes(each)).join("\n"),
  });
  const openAt = (row: Row, column?: number) => {
    if (row.tensor === null) {
      toggle(row);
      return;
    }
    const place = column === undefined ? -1 : (cells?.cellAt(column) ?? -1);
    const run = place < 0 ? undefined : cells!.tile.runs[place];
    go(address("tensor", { name: grid.tensors[row.tensor], run, rank: grid.task }));
  };
  const showRow = (row: number) => {
    const chosenRow = clamp(row, 0, rows.length - 1);
    setChosen(chosenRow);
    const box = scroller.current;
    if (!box) return;
    if (chosenRow * ROW < box.scrollTop) box.scrollTop = chosenRow * ROW;
    else if ((chosenRow + 1) * ROW > box.scrollTop + box.clientHeight) box.scrollTop = (chosenRow + 1) * ROW - box.clientHeight;
  };
  const firstBad = () => {
    let best: number | null = null;
    for (const tensor of tensors) {
      const bad = grid.first_bad[tensor];
      if (bad != null && (best === null || bad < grid.first_bad[best]!)) best = tensor;
    }
    if (best === null) return;
    const path = tree.pathTo(best);
    const shown = params.sort === "bad" ? rows : tree.rows(new Set([...opened, ...path]));
    const place = shown.findIndex((row) => row.tensor === best);
    const column = grid.first_bad[best]!;
    const closed = path.filter((each) => !opened.has(each));
    change({ ...folded(closed, []), ...(grid.columns > 80 ? rangeOf(column - 40, column + 40) : {}) });
    setTimeout(() => showRow(place), 0);
  };

  const pressed = (event: KeyboardEvent) => {
    if (event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement) return;
    const row = rows[chosen];
    const step = Math.max(1, (to - from) / 10);
    const actions: Record<string, () => void> = {
      ArrowDown: () => showRow(chosen + 1),
      ArrowUp: () => showRow(chosen - 1),
      ArrowLeft: () => (event.shiftKey && row ? row.isOpen && toggle(row) : setRange(from - step, to - step)),
      ArrowRight: () => (event.shiftKey && row ? !row.isOpen && row.tensor === null && toggle(row) : setRange(from + step, to + step)),
      "+": () => zoom(0.6),
      "=": () => zoom(0.6),
      "-": () => zoom(1 / 0.6),
      "0": () => change({ from: null, to: null }),
      Enter: () => row && openAt(row),
      b: firstBad,
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  };

  const columnAt = (x: number) => Math.floor(from + (x / Math.max(width, 1)) * (to - from));
  const drag = usePan(canvas, (share, began) => {
    const size = began.to - began.from;
    setRange(began.from - share * size, began.to - share * size);
  }, { from, to });
  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const wheel = (event: WheelEvent) => {
      const at = event.offsetX / Math.max(width, 1);
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        zoom(Math.exp(clamp(event.deltaY, -50, 50) / 100), at);
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        const shift = ((event.deltaX || event.deltaY) / Math.max(width, 1)) * (to - from);
        setRange(from + shift, to + shift);
      }
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  });

  const phases = useMemo(() => [...new Set(grid.phases)].filter(Boolean).sort(), [grid]);
  const dtypes = useMemo(() => [...new Set(grid.dtypes)].filter(Boolean).sort(), [grid]);
  const badCount = grid.first_bad.filter((each) => each != null).length;
  const shownTree = rows.slice(firstRow, firstRow + shownRows + 1);
  const body = Math.min(Math.max(rows.length * ROW, ROW * 4), Math.max(ROW * 12, innerHeight * 0.66));

  return (
    <section class="card grid" aria-label="Health grid" onKeyDown={pressed}>
      <div class="bar">
        <h2>Health of {many(grid.tensors.length, "tensor")}</h2>
        <span class="muted">
          over {many(grid.runs, "run")}
          {badCount > 0 && <>, {count(badCount)} went bad</>}
        </span>
        {grid.progress < 1 && (
          <span class="muted" role="status">
            <span class="spinner" /> {Math.floor(100 * grid.progress)} % read
          </span>
        )}
        <span class="space" />
        <Legend mode={mode} palette={palette} />
      </div>
      <div class="bar tools">
        <input
          data-filter
          type="search"
          placeholder="Filter by name  /"
          aria-label="Filter by name"
          value={filter.name}
          onInput={(event) => change({ filter: event.currentTarget.value })}
        />
        {phases.length > 1 && (
          <Select label="phase" value={filter.phase} options={phases} choose={(phase) => change({ phase })} />
        )}
        {dtypes.length > 1 && (
          <Select label="dtype" value={filter.dtype} options={dtypes} choose={(dtype) => change({ dtype })} />
        )}
        {grid.tasks.length > 1 && (
          <Select
            label="rank"
            value={String(grid.task)}
            options={grid.tasks.map(String)}
            choose={(rank) => change({ rank })}
            isRequired
          />
        )}
        <Choice
          label="Order"
          value={params.sort === "bad" ? "bad" : "tree"}
          options={[
            ["tree", "Modules"],
            ["bad", "First bad"],
          ]}
          choose={(sort) => change({ sort: sort === "bad" ? sort : null })}
        />
        <Choice
          label="Colour"
          value={mode}
          options={[
            ["size", "Magnitude"],
            ["zeros", "Zeros"],
          ]}
          choose={(colour) => change({ colour: colour === "zeros" ? colour : null })}
        />
        <span class="space" />
        {badCount > 0 && (
          <button type="button" onClick={firstBad} title="Go to the first bad cell (b)">
            First bad
          </button>
        )}
        <span class="zoom">
          <button type="button" onClick={() => zoom(1 / 0.6)} disabled={isWhole} aria-label="Zoom out">
            −
          </button>
          <button type="button" onClick={() => zoom(0.6)} aria-label="Zoom in">
            +
          </button>
          <button type="button" onClick={() => change({ from: null, to: null })} disabled={isWhole}>
            All
          </button>
        </span>
      </div>
      {tensors.length === 0 ? (
        <Empty title="No tensor has such a name">
          <p>
            <button type="button" onClick={() => change({ filter: null, phase: null, dtype: null })}>
              Show all
            </button>
          </p>
        </Empty>
      ) : (
        <div class="frame">
          <div class="axis">
            <Strip
              grid={grid}
              tensors={tensors}
              from={from}
              to={to}
              palette={palette}
              mode={mode}
              setRange={setRange}
            />
          </div>
          <Axis cells={cells} from={from} to={to} />
          <div
            class="rows"
            ref={scroller}
            style={{ height: `${body}px` }}
            onScroll={(event) => setScroll(event.currentTarget.scrollTop)}
            tabIndex={0}
            role="tree"
            aria-label="Tensors"
          >
            <div class="inside" style={{ height: `${rows.length * ROW}px` }}>
              <div class="window" style={{ top: `${firstRow * ROW}px`, height: `${body}px` }}>
                <div class="labels">
                  {shownTree.map((row, place) => (
                    <div
                      key={row.key}
                      class={`label${firstRow + place === chosen ? " chosen" : ""}`}
                      style={{ height: `${ROW}px`, paddingLeft: `${4 + row.depth * 12}px` }}
                      title={row.tensor === null ? row.key : grid.tensors[row.tensor]}
                      role="treeitem"
                      aria-expanded={row.tensor === null ? row.isOpen : undefined}
                      aria-selected={firstRow + place === chosen}
                      onClick={() => {
                        setChosen(firstRow + place);
                        openAt(row);
                      }}
                    >
                      <span class="fold">{row.tensor === null ? (row.isOpen ? "▾" : "▸") : ""}</span>
                      <bdi class={row.tensor === null ? "module" : "leaf"}>{row.label}</bdi>
                      {row.tensor === null && <span class="muted small">{row.tensors.length}</span>}
                    </div>
                  ))}
                </div>
                <div class="cells" ref={attach}>
                  <canvas
                    ref={canvas}
                    onPointerDown={drag}
                    onPointerMove={(event) => {
                      const row = firstRow + Math.floor(event.offsetY / ROW);
                      setHover({ row, column: columnAt(event.offsetX), x: event.offsetX, y: event.offsetY });
                    }}
                    onPointerLeave={() => setHover(null)}
                    onClick={(event) => {
                      if (canvas.current?.dataset.dragged) return;
                      const place = firstRow + Math.floor(event.offsetY / ROW);
                      const row = rows[place];
                      if (!row) return;
                      setChosen(place);
                      openAt(row, columnAt(event.offsetX));
                    }}
                    onDblClick={() => change({ from: null, to: null })}
                  />
                  {hover && <Tip hover={hover} rows={rows} cells={cells} grid={grid} width={width} />}
                </div>
              </div>
            </div>
          </div>
          <p class="hint muted">
            Drag to pan, Ctrl and wheel to zoom, drag on the strip to choose runs, click for the tensor.
          </p>
        </div>
      )}
    </section>
  );
}

function Tip(props: {
  hover: { row: number; column: number; x: number; y: number };
  rows: Row[];
  cells: Cells | null;
  grid: Grid;
  width: number;
}) {
  const { hover, rows, cells, grid } = props;
  const row = rows[hover.row];
  if (!row || !cells) return null;
  const place = cells.cellAt(hover.column);
  const line = hover.row - cells.firstRow;
  if (place < 0 || line < 0 || line >= cells.rows) return null;
  const at = line * cells.width + place;
  const { edges, runs, steps } = cells.tile;
  const several = edges[place + 1]! - edges[place]! > 1;
  const left = hover.x > props.width - 300;
  return (
    <div class={`tip${left ? " left" : ""}`} style={{ left: `${hover.x}px`, top: `${hover.y + 18}px` }}>
      <b>
        <bdi>{row.tensor === null ? row.key : grid.tensors[row.tensor]}</bdi>
      </b>
      <br />
      run {count(runs[place]!)}
      {several && ` to ${count(runs[place + 1]!)}`}
      {!several && steps[place]! >= 0 && steps[place] !== runs[place] && `, step ${count(steps[place]!)}`}
      <br />
      {describe(cells.kinds[at]!, cells.sizes[at]!, cells.zeros[at]!)}
    </div>
  );
}

function Axis({ cells, from, to }: { cells: Cells | null; from: number; to: number }) {
  if (!cells) return <div class="ticks" />;
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const column = Math.min(Math.floor(from + share * (to - from)), to - 1);
    const place = cells.cellAt(column);
    return [share, place < 0 ? null : cells.tile.runs[place]!] as const;
  });
  return (
    <div class="ticks muted" aria-hidden="true">
      {ticks.map(([share, run]) => run !== null && <span style={{ left: `${share * 100}%` }}>{share ? count(run) : `run ${count(run)}`}</span>)}
    </div>
  );
}

function Select(props: {
  label: string;
  value: string;
  options: string[];
  choose: (value: string | null) => void;
  isRequired?: boolean;
}) {
  return (
    <label class="muted">
      {props.label}{" "}
      <select value={props.value} onChange={(event) => props.choose(event.currentTarget.value || null)}>
        {!props.isRequired && <option value="">all</option>}
        {props.options.map((each) => (
          <option key={each} value={each}>
            {each}
          </option>
        ))}
      </select>
    </label>
  );
}

interface Range {
  from: number;
  to: number;
}

/** Dragging moves the columns under the pointer. */
function usePan(
  canvas: { current: HTMLCanvasElement | null },
  moved: (share: number, began: Range) => void,
  range: Range,
): (event: PointerEvent) => void {
  const latest = useRef(moved);
  latest.current = moved;
  return (event) => {
    const element = canvas.current;
    if (!element || event.button !== 0) return;
    const began = { ...range };
    const start = event.clientX;
    delete element.dataset.dragged;
    const move = (next: PointerEvent) => {
      const distance = next.clientX - start;
      if (Math.abs(distance) > 4) element.dataset.dragged = "yes";
      if (element.dataset.dragged) latest.current(distance / Math.max(element.clientWidth, 1), began);
    };
    const end = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", end);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
  };
}

function clamp(value: number, low: number, high: number): number {
  return Number.isFinite(value) ? Math.min(Math.max(value, low), high) : low;
}

function named(list: string | undefined): string[] {
  return list ? list.split("\n") : [];
}
