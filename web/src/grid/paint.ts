// Draws cells. Bad ones differ by pattern and letter too, not by colour alone.
import { bytesOf } from "../api/bytes";
import type { Tile } from "../api/types";
import { colour, css } from "../app/theme";
import { ALL_ZERO, BAD, NAN, RECORDED, UNREAD, powerOf } from "./cells";

export type Mode = "size" | "zeros";
type Colour = [number, number, number];

export const LOW_POWER = -10;
export const HIGH_POWER = 4;
const HUGE_POWER = 12;
const LETTER_WIDTH = 13;

export class Palette {
  readonly nan = colour("--nan");
  readonly inf = colour("--inf");
  readonly none = colour("--none");
  readonly unread = colour("--unread");
  private readonly zero = colour("--zero");
  private readonly ramp = [colour("--small"), colour("--middle"), colour("--large")] as const;
  private readonly huge = colour("--huge");
  private readonly share = [colour("--zeros-none"), colour("--zeros-all")] as const;
  private readonly sizes: Colour[];

  constructor() {
    this.sizes = Array.from({ length: 256 }, (_, size) => this.ofPower(size <= ALL_ZERO ? null : powerOf(size)));
  }

  ofPower(power: number | null): Colour {
    if (power === null) return this.zero;
    if (power > HIGH_POWER) return mixed(this.ramp[2], this.huge, (power - HIGH_POWER) / (HUGE_POWER - HIGH_POWER));
    const place = Math.max(0, (power - LOW_POWER) / (HIGH_POWER - LOW_POWER));
    return place < 0.6
      ? mixed(this.ramp[0], this.ramp[1], place / 0.6)
      : mixed(this.ramp[1], this.ramp[2], (place - 0.6) / 0.4);
  }

  ofSize(size: number): Colour {
    return this.sizes[size]!;
  }

  ofZeros(zeros: number): Colour {
    return mixed(this.share[0], this.share[1], zeros / 255);
  }
}

function mixed(a: Colour, b: Colour, share: number): Colour {
  const t = Math.min(1, Math.max(0, share));
  return [0, 1, 2].map((i) => Math.round(a[i]! + (b[i]! - a[i]!) * t)) as Colour;
}

/** A tile, unpacked once and drawn often. */
export class Cells {
  readonly kinds: Uint8Array;
  readonly sizes: Uint8Array;
  readonly zeros: Uint8Array;
  readonly width: number;

  constructor(
    readonly tile: Tile,
    readonly firstRow: number,
    readonly rows: number,
  ) {
    [this.kinds, this.sizes, this.zeros] = [tile.kinds, tile.sizes, tile.zeros].map(bytesOf) as [
      Uint8Array,
      Uint8Array,
      Uint8Array,
    ];
    this.width = tile.edges.length - 1;
  }

  /** The cell that a column is in, -1 if it is in none. */
  cellAt(column: number): number {
    const { edges } = this.tile;
    if (column < edges[0]! || column >= edges[this.width]!) return -1;
    let low = 0;
    let high = this.width;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (edges[middle]! <= column) low = middle;
      else high = middle;
    }
    return low;
  }
}

export interface Frame {
  from: number;
  to: number;
  firstRow: number;
  rows: number;
  rowHeight: number;
  mode: Mode;
}

/** Draw what of the cells is in the frame; the rest is left as it was recorded: not at all. */
export function paint(canvas: HTMLCanvasElement, cells: Cells, frame: Frame, palette: Palette): void {
  const scale = devicePixelRatio || 1;
  const width = Math.round(canvas.clientWidth * scale);
  const height = Math.round(canvas.clientHeight * scale);
  if (!width || !height) return;
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const ground = packed(palette.none);
  pixels.fill(ground);
  const places = new Int32Array(width);
  const perPixel = (frame.to - frame.from) / width;
  const cellWidth = 1 / perPixel;
  for (let x = 0; x < width; x++) {
    const column = Math.floor(frame.from + (x + 0.5) * perPixel);
    places[x] = cells.cellAt(column);
    // A line between cells that are wide enough to have one.
    if (cellWidth > 5 * scale && Math.floor(frame.from + (x - 0.5) * perPixel) !== column) places[x] = -1;
  }
  const rowHeight = frame.rowHeight * scale;
  for (let row = 0; row < frame.rows; row++) {
    const line = frame.firstRow + row - cells.firstRow;
    if (line < 0 || line >= cells.rows) continue;
    const top = Math.round(row * rowHeight);
    const bottom = Math.min(Math.round((row + 1) * rowHeight) - Math.max(1, Math.round(scale)), height);
    for (let x = 0; x < width; x++) {
      const place = places[x]!;
      if (place < 0) continue;
      const at = line * cells.width + place;
      const kinds = cells.kinds[at]!;
      if (!(kinds & RECORDED)) continue;
      const [plain, striped] = coloursOf(kinds, cells.sizes[at]!, cells.zeros[at]!, frame.mode, palette);
      for (let y = top; y < bottom; y++) {
        pixels[y * width + x] = striped !== plain && isStripe(kinds, x, y, scale) ? striped : plain;
      }
    }
  }
  context.putImageData(image, 0, 0);
  if (cellWidth >= LETTER_WIDTH * scale) letters(context, cells, frame, cellWidth, rowHeight, scale);
}

function coloursOf(kinds: number, size: number, zeros: number, mode: Mode, palette: Palette): [number, number] {
  if (kinds & NAN) return [packed(palette.nan), packed(mixed(palette.nan, palette.none, 0.35))];
  if (kinds & BAD) return [packed(palette.inf), packed(mixed(palette.inf, palette.none, 0.4))];
  if (kinds & UNREAD) return [packed(palette.unread), packed(palette.none)];
  const plain = packed(mode === "zeros" ? palette.ofZeros(zeros) : palette.ofSize(size));
  return [plain, plain];
}

/** NaN is striped across, infinities level, what was not looked at is dotted. */
function isStripe(kinds: number, x: number, y: number, scale: number): boolean {
  const [a, b] = [Math.floor(x / scale), Math.floor(y / scale)];
  if (kinds & NAN) return (a + b) % 5 === 0;
  if (kinds & BAD) return b % 4 === 1;
  return (a + 2 * b) % 4 === 0;
}

function letters(
  context: CanvasRenderingContext2D,
  cells: Cells,
  frame: Frame,
  cellWidth: number,
  rowHeight: number,
  scale: number,
): void {
  context.font = `700 ${Math.round(10 * scale)}px ${css("--mono")}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillStyle = "#fff";
  for (let row = 0; row < frame.rows; row++) {
    const line = frame.firstRow + row - cells.firstRow;
    if (line < 0 || line >= cells.rows) continue;
    for (let column = Math.floor(frame.from); column < frame.to; column++) {
      const place = cells.cellAt(column);
      const kinds = place < 0 ? 0 : cells.kinds[line * cells.width + place]!;
      if (!(kinds & BAD)) continue;
      const x = (column + 0.5 - frame.from) * cellWidth;
      context.fillText(kinds & NAN ? "N" : "∞", x, (row + 0.5) * rowHeight);
    }
  }
}

function packed([red, green, blue]: Colour): number {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
