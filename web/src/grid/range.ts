// The columns that are shown: which may be, and how a pointer moves them.
import { useEffect, useRef } from "preact/hooks";

const LEAST_COLUMNS = 8;

export interface Range {
  from: number;
  to: number;
}

/** The nearest range there is, as it stands in the address: the whole one is not mentioned. */
export function rangeOf(begin: number, end: number, columns: number): { from: number | null; to: number | null } {
  const size = Math.min(columns, Math.max(LEAST_COLUMNS, Math.round(end - begin)));
  const first = clamp(Math.round(begin), 0, Math.max(0, columns - size));
  return size >= columns ? { from: null, to: null } : { from: first, to: first + size };
}

/** Dragging moves the columns under the pointer. */
export function usePan(
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

/** Control and the wheel zoom at the pointer; shift and the wheel, or a sideways one, move. */
export function useWheel(
  canvas: { current: HTMLCanvasElement | null },
  width: number,
  zoom: (factor: number, at: number) => void,
  shift: (share: number) => void,
): void {
  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const wheel = (event: WheelEvent) => {
      const wide = Math.max(width, 1);
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        zoom(Math.exp(clamp(event.deltaY, -50, 50) / 100), event.offsetX / wide);
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        shift((event.deltaX || event.deltaY) / wide);
      }
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  });
}

export function clamp(value: number, low: number, high: number): number {
  return Number.isFinite(value) ? Math.min(Math.max(value, low), high) : low;
}
