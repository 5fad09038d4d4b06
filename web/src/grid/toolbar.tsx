// What stands above the grid: how much there is, which of it to show, in which order and colours.
import { useMemo } from "preact/hooks";
import type { Grid } from "../api/types";
import { useHere, useParams } from "../app/context";
import { Choice } from "../parts/parts";
import { count, many } from "../parts/text";
import { Legend } from "./legend";
import type { Mode, Palette } from "./paint";
import type { Filter } from "./tree";

export function Toolbar(props: {
  grid: Grid;
  filter: Filter;
  mode: Mode;
  palette: Palette;
  isWhole: boolean;
  zoom: (factor: number) => void;
  firstBad: () => void;
}) {
  const { grid, filter, mode, palette, isWhole, zoom, firstBad } = props;
  const { params } = useHere();
  const change = useParams();
  const phases = useMemo(() => [...new Set(grid.phases)].filter(Boolean).sort(), [grid]);
  const dtypes = useMemo(() => [...new Set(grid.dtypes)].filter(Boolean).sort(), [grid]);
  const badCount = grid.first_bad.filter((each) => each != null).length;
  return (
    <>
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
    </>
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
