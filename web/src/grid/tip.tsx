// What is under the pointer.
import type { Grid } from "../api/types";
import { count } from "../parts/text";
import { describe } from "./cells";
import type { Cells } from "./paint";
import type { Row } from "./tree";

export interface Hover {
  row: number;
  column: number;
  x: number;
  y: number;
}

export function Tip(props: {
  hover: Hover;
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
