// The cells that are shown, asked of the server: one request at a time; when it is answered, the next asks for what is shown by then.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Grid, TileRequest } from "../api/types";
import { useHere } from "../app/context";
import { Cells } from "./paint";
import type { Range } from "./range";
import { type Row, ranges } from "./tree";

export function useCells(
  grid: Grid,
  rows: Row[],
  firstRow: number,
  { from, to }: Range,
  width: number,
): { cells: Cells | null; isCurrent: () => boolean } {
  const { client, job, state } = useHere();
  const [cells, setCells] = useState<Cells | null>(null);
  const wanted = useRef<{ asked: TileRequest; firstRow: number; key: string } | null>(null);
  const isAsking = useRef(false);
  const got = useRef("");
  const margin = (to - from) / 2;
  const asked: TileRequest = {
    task: grid.task,
    rows: rows.map((row) => ranges(row.tensors)),
    from: Math.max(0, Math.floor(from - margin)),
    to: Math.min(grid.columns, Math.ceil(to + margin)),
    columns: Math.max(1, Math.min(4096, 2 * width)),
  };
  const key = JSON.stringify([asked.from, asked.to, asked.columns, firstRow, grid.version, rows.map((row) => row.key)]);
  wanted.current = { asked, firstRow, key };
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
  return { cells, isCurrent: () => got.current === wanted.current?.key };
}
