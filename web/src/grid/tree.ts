// The rows of the grid: tensors as a tree of modules that folds, or as a list.
import type { Grid, Ranges } from "../api/types";

export interface Row {
  key: string;
  label: string;
  depth: number;
  tensors: number[];
  /** The tensor, if it is one and not a module. */
  tensor: number | null;
  isOpen: boolean;
}

interface Branch {
  path: string;
  label: string;
  branches: Map<string, Branch>;
  leaves: number[];
  tensors: number[];
}

const OPEN_ROWS = 60;
const FEW_ROWS = 8;

export interface Filter {
  name: string;
  phase: string;
  dtype: string;
  bad: boolean;
}

export function filtered(grid: Grid, filter: Filter): number[] {
  const wanted = filter.name.toLowerCase();
  const found: number[] = [];
  grid.tensors.forEach((name, place) => {
    if (wanted && !name.toLowerCase().includes(wanted)) return;
    if (filter.phase && grid.phases[place] !== filter.phase) return;
    if (filter.dtype && grid.dtypes[place] !== filter.dtype) return;
    if (filter.bad && grid.first_bad[place] == null) return;
    found.push(place);
  });
  return found;
}

/** One row for each tensor, those that went bad first at the top. */
export function listed(grid: Grid, tensors: number[]): Row[] {
  const sorted = [...tensors].sort((a, b) => (grid.first_bad[a] ?? Infinity) - (grid.first_bad[b] ?? Infinity) || a - b);
  return sorted.map((tensor) => ({
    key: grid.tensors[tensor]!,
    label: grid.tensors[tensor]!,
    depth: 0,
    tensors: [tensor],
    tensor,
    isOpen: false,
  }));
}

export class Tree {
  private readonly root: Branch;

  constructor(
    private readonly grid: Grid,
    tensors: number[],
  ) {
    this.root = branch("", "");
    for (const tensor of tensors) this.add(tensor);
    for (const [key, child] of [...this.root.branches]) this.root.branches.set(key, joined(child));
  }

  private add(tensor: number): void {
    const parts = this.grid.tensors[tensor]!.split("/");
    let at = this.root;
    at.tensors.push(tensor);
    for (const part of parts.slice(0, -1)) {
      let next = at.branches.get(part);
      if (!next) {
        next = branch(at.path ? `${at.path}/${part}` : part, part);
        at.branches.set(part, next);
      }
      at = next;
      at.tensors.push(tensor);
    }
    at.leaves.push(tensor);
  }

  /** What is open at first: as much as a screen shows. */
  opened(): Set<string> {
    const open = new Set<string>();
    let border = [...this.root.branches.values()];
    let rows = border.length + this.root.leaves.length;
    while (border.length) {
      const next: Branch[] = [];
      for (const each of border) {
        const more = each.branches.size + each.leaves.length;
        if (rows + more > OPEN_ROWS && rows > FEW_ROWS) continue;
        open.add(each.path);
        rows += more;
        next.push(...each.branches.values());
      }
      border = next;
    }
    return open;
  }

  rows(open: Set<string>): Row[] {
    const found: Row[] = [];
    const walk = (at: Branch, depth: number) => {
      const items: [number, () => void][] = [...at.branches.values()].map((each) => [
        each.tensors[0]!,
        () => {
          const isOpen = open.has(each.path);
          found.push({ key: each.path, label: each.label, depth, tensors: each.tensors, tensor: null, isOpen });
          if (isOpen) walk(each, depth + 1);
        },
      ]);
      for (const leaf of at.leaves) {
        items.push([
          leaf,
          () => {
            const name = this.grid.tensors[leaf]!;
            const label = name.slice(name.lastIndexOf("/") + 1);
            found.push({ key: name, label, depth, tensors: [leaf], tensor: leaf, isOpen: false });
          },
        ]);
      }
      // In the order of execution, whether module or tensor.
      items.sort((a, b) => a[0] - b[0]).forEach(([, show]) => show());
    };
    walk(this.root, 0);
    return found;
  }

  /** The modules around a tensor, to be opened. */
  pathTo(tensor: number): string[] {
    const parts = this.grid.tensors[tensor]!.split("/").slice(0, -1);
    return parts.map((_, place) => parts.slice(0, place + 1).join("/"));
  }
}

function branch(path: string, label: string): Branch {
  return { path, label, branches: new Map(), leaves: [], tensors: [] };
}

/** Modules that hold nothing but one module are shown as one. */
function joined(at: Branch): Branch {
  let here = at;
  let label = here.label;
  while (here.branches.size === 1 && !here.leaves.length) {
    here = [...here.branches.values()][0]!;
    label = `${label}/${here.label}`;
  }
  for (const [key, child] of [...here.branches]) here.branches.set(key, joined(child));
  return { ...here, label };
}

export function ranges(tensors: number[]): Ranges {
  const found: Ranges = [];
  for (const tensor of [...tensors].sort((a, b) => a - b)) {
    const last = found[found.length - 1];
    if (last && last[1] === tensor) last[1]++;
    else found.push([tensor, tensor + 1]);
  }
  return found;
}
