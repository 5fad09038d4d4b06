// All runs in one line, with the part that is shown below marked; dragging on it chooses another.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Grid } from "../api/types";
import { useHere } from "../app/context";
import { useSize } from "../parts/parts";
import { Cells, type Mode, type Palette, paint } from "./paint";
import { ranges } from "./tree";

const HEIGHT = 20;

export function Strip(props: {
  grid: Grid;
  tensors: number[];
  from: number;
  to: number;
  mode: Mode;
  palette: Palette;
  setRange: (from: number, to: number) => void;
}) {
  const { grid, tensors, from, to, mode, palette, setRange } = props;
  const { client, job } = useHere();
  const [attach, width] = useSize();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [cells, setCells] = useState<Cells | null>(null);
  const [brush, setBrush] = useState<[number, number] | null>(null);

  useEffect(() => {
    if (!width) return;
    let isWanted = true;
    const asked = { task: grid.task, rows: [ranges(tensors)], from: 0, to: grid.columns, columns: width };
    client.tile(job, asked).then(
      (tile) => isWanted && setCells(new Cells(tile, 0, 1)),
      () => undefined, // asked again with the next change
    );
    return () => {
      isWanted = false;
    };
  }, [grid, tensors, width]);
  useEffect(() => {
    if (!cells || !canvas.current) return;
    paint(canvas.current, cells, { from: 0, to: grid.columns, firstRow: 0, rows: 1, rowHeight: HEIGHT, mode }, palette);
  }, [cells, width, mode, palette]);

  const began = (event: PointerEvent) => {
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const at = (x: number) => Math.min(1, Math.max(0, (x - box.left) / box.width)) * grid.columns;
    const start = at(event.clientX);
    const move = (next: PointerEvent) => setBrush([start, at(next.clientX)]);
    const end = (last: PointerEvent) => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", end);
      setBrush(null);
      const stop = at(last.clientX);
      const size = to - from;
      if (Math.abs(stop - start) * (box.width / grid.columns) > 4) setRange(Math.min(start, stop), Math.max(start, stop));
      else setRange(start - size / 2, start + size / 2);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
  };
  const [left, right] = brush ? [Math.min(...brush), Math.max(...brush)] : [from, to];
  return (
    <div class="strip" ref={attach} onPointerDown={began} title="All runs; drag to choose some of them">
      <canvas ref={canvas} />
      <span class="shade" style={{ left: 0, width: `${(left / grid.columns) * 100}%` }} />
      <span class="shade" style={{ left: `${(right / grid.columns) * 100}%`, right: 0 }} />
    </div>
  );
}
