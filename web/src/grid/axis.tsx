// The numbers of the runs above the cells.
import { count } from "../parts/text";
import type { Cells } from "./paint";

export function Axis({ cells, from, to }: { cells: Cells | null; from: number; to: number }) {
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
