// What a report that stands alone carries: answers by address, and the health grid as a whole.
import { bytesOf, textOf } from "./bytes";
import type { Tile, TileRequest } from "./types";

interface Contents {
  answers: Record<string, unknown>;
  mosaic: { columns: number; runs: number[]; steps: number[]; kinds: string; sizes: string; zeros: string };
  command: string;
}

const BLOCK = "contents";

/** An address without what a report does not distinguish: it has one rank, and the last execution. */
function plain(address: string): string {
  const [path, query = ""] = address.split("?") as [string, string | undefined];
  const kept = query.split("&").filter((part) => part && !/^(task|points|execution)=/.test(part));
  return kept.length ? `${path}?${kept.join("&")}` : path;
}

export class Embedded {
  private readonly planes: Uint8Array[];

  private constructor(private readonly contents: Contents) {
    const { kinds, sizes, zeros } = contents.mosaic;
    this.planes = [kinds, sizes, zeros].map(bytesOf);
  }

  /** The contents of this page, null if a server has them. */
  static async find(): Promise<Embedded | null> {
    const block = document.getElementById(BLOCK);
    if (!block) return null;
    const stream = new Blob([bytesOf(block.textContent ?? "")]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Embedded(JSON.parse(await new Response(stream).text()) as Contents);
  }

  answer<A>(address: string): A {
    const found = this.contents.answers[plain(address)];
    if (found === undefined) throw new Error(`This is not part of the report. ${this.contents.command} shows it.`);
    return found as A;
  }

  /** The same as the server does in `analyze/mosaic.py`. */
  tile(asked: TileRequest): Tile {
    const { columns, runs, steps } = this.contents.mosaic;
    const end = Math.min(asked.to, columns);
    const begin = Math.max(0, Math.min(asked.from, end));
    const count = Math.max(0, Math.min(asked.columns, end - begin));
    const edges = Array.from({ length: count + 1 }, (_, place) =>
      begin + Math.floor(((end - begin) * place) / Math.max(count, 1)));
    const made = this.planes.map((plane, number) => {
      const cells = new Uint8Array(asked.rows.length * count);
      asked.rows.forEach((ranges, row) => {
        for (const [first, last] of ranges) {
          for (let line = first; line < last; line++) {
            for (let cell = 0; cell < count; cell++) {
              for (let column = edges[cell]!; column < edges[cell + 1]!; column++) {
                const value = plane[line * columns + column]!;
                const target = row * count + cell;
                cells[target] = number ? Math.max(cells[target]!, value) : cells[target]! | value;
              }
            }
          }
        }
      });
      return textOf(cells);
    });
    const places = edges.map((edge) => Math.min(edge, Math.max(columns - 1, 0)));
    return {
      version: 1,
      edges,
      runs: places.map((place) => runs[place] ?? 0),
      steps: places.map((place) => steps[place] ?? 0),
      kinds: made[0]!,
      sizes: made[1]!,
      zeros: made[2]!,
    };
  }
}
