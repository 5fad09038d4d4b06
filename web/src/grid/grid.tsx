// The health grid: tensors in rows, runs in columns. The server sends what the pixels need.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Grid } from "../api/types";
import { useAddress, useHere, useLoaded, useParams } from "../app/context";
import { go } from "../app/router";
import { Empty, Loading, Problem, useSize } from "../parts/parts";
import { useCells } from "./asking";
import { Axis } from "./axis";
import { type Mode, Palette, paint } from "./paint";
import { clamp, rangeOf, usePan, useWheel } from "./range";
import { Strip } from "./strip";
import { type Hover, Tip } from "./tip";
import { Toolbar } from "./toolbar";
import { type Row, Tree, filtered, listed } from "./tree";

const ROW = 19;
const OVERSCAN = 12;

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
  const { params } = useHere();
  const change = useParams();
  const address = useAddress();
  const [chosen, setChosen] = useState(0);
  const [hover, setHover] = useState<Hover | null>(null);
  const [theme, setTheme] = useState(0);
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

  const firstAsked = Math.max(0, firstRow - OVERSCAN);
  const askedRows = rows.slice(firstAsked, firstRow + shownRows + OVERSCAN);
  const { cells, isCurrent } = useCells(grid, askedRows, firstAsked, { from, to }, width);

  useEffect(() => {
    if (!cells || !canvas.current || !width) return;
    const frame = { from, to, firstRow, rows: Math.min(shownRows, rows.length - firstRow), rowHeight: ROW, mode };
    paint(canvas.current, cells, frame, palette);
    if (!canvas.current.dataset.painted) performance.mark("grid first painted");
    canvas.current.dataset.painted = "yes";
    if (isCurrent()) {
      performance.clearMarks("grid painted");
      performance.mark("grid painted");
    }
  }, [cells, from, to, firstRow, shownRows, rows, width, height, mode, palette]);

  const setRange = (begin: number, end: number) => change(rangeOf(begin, end, grid.columns));
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
    change({ ...folded(closed, []), ...(grid.columns > 80 ? rangeOf(column - 40, column + 40, grid.columns) : {}) });
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
  useWheel(canvas, width, zoom, (share) => setRange(from + share * (to - from), to + share * (to - from)));

  const shownTree = rows.slice(firstRow, firstRow + shownRows + 1);
  const body = Math.min(Math.max(rows.length * ROW, ROW * 4), Math.max(ROW * 12, innerHeight * 0.66));

  return (
    <section class="card grid" aria-label="Health grid" onKeyDown={pressed}>
      <Toolbar
        grid={grid}
        filter={filter}
        mode={mode}
        palette={palette}
        isWhole={isWhole}
        zoom={zoom}
        firstBad={firstBad}
      />
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

function named(list: string | undefined): string[] {
  return list ? list.split("\n") : [];
}
