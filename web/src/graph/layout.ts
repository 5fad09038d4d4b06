// Where the boxes of a graph stand. Nodes of modules that were not opened are shown as one box.
import dagre from "@dagrejs/dagre";
import type { BriefNode, Edge, Neighbours } from "../api/types";
import { cut } from "../parts/text";

export interface Box {
  key: string;
  title: string;
  under: string;
  health: string;
  x: number;
  y: number;
  width: number;
  height: number;
  /** The node, null for a module. */
  node: BriefNode | null;
  count: number;
}

export interface Line {
  key: string;
  points: { x: number; y: number }[];
  isControl: boolean;
  isPath: boolean;
  tensor: string;
}

export interface Layout {
  boxes: Box[];
  lines: Line[];
  width: number;
  height: number;
}

const FOLD_FROM = 3;

export function laidOut(found: Neighbours, open: Set<string>): Layout {
  const focus = found.node.name;
  const folds = folded(found.nodes, found.node.module, open);
  const boxOf = (name: string) => folds.get(name) ?? name;
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "TB", nodesep: 22, ranksep: 40, marginx: 16, marginy: 16 });
  graph.setDefaultEdgeLabel(() => ({}));
  const groups = new Map<string, BriefNode[]>();
  for (const node of found.nodes) {
    const key = boxOf(node.name);
    groups.set(key, [...(groups.get(key) ?? []), node]);
  }
  const texts = new Map<string, { title: string; under: string }>();
  for (const [key, nodes] of groups) {
    const isModule = nodes.length > 1;
    const node = nodes[0]!;
    const title = isModule ? cut(node.module ?? "", 34) : cut(node.name, 34);
    const under = isModule ? `${nodes.length} operations` : cut([node.op, node.text].filter(Boolean).join(" · "), 40);
    texts.set(key, { title, under });
    const width = Math.max(title.length * 7.1, under.length * 6.1) + 34;
    graph.setNode(key, { width: Math.max(110, width), height: key === focus ? 48 : 42 });
  }
  const path = new Set(found.path.slice(1).map((name, place) => `${boxOf(found.path[place]!)}\n${boxOf(name)}`));
  const lines = new Map<string, Edge>();
  for (const edge of found.edges) {
    const [from, to] = [boxOf(edge.from), boxOf(edge.to)];
    if (from === to) continue;
    const key = `${from}\n${to}`;
    if (!lines.has(key)) lines.set(key, edge);
    graph.setEdge(from, to);
  }
  dagre.layout(graph);
  const size = graph.graph() as { width?: number; height?: number };
  return {
    boxes: [...groups].map(([key, nodes]) => {
      const at = graph.node(key) as { x: number; y: number; width: number; height: number };
      const bad = nodes.find((node) => node.health === "bad");
      const health = bad ? "bad" : nodes.every((node) => node.health === "good") ? "good" : "unknown";
      return { key, ...texts.get(key)!, health, ...at, node: nodes.length > 1 ? null : nodes[0]!, count: nodes.length };
    }),
    lines: [...lines].map(([key, edge]) => {
      const [from, to] = key.split("\n") as [string, string];
      const laid = graph.edge(from, to) as { points: { x: number; y: number }[] };
      return { key, points: laid.points, isControl: edge.control, isPath: path.has(key), tensor: edge.tensor };
    }),
    width: size.width ?? 100,
    height: size.height ?? 100,
  };
}

/** Which box a node is folded into: that of its module, if several nodes far from the focus are in it. */
function folded(nodes: BriefNode[], own: string | null, open: Set<string>): Map<string, string> {
  const groups = new Map<string, BriefNode[]>();
  for (const node of nodes) {
    if (!node.module || node.module === own || Math.abs(node.distance) < 2) continue;
    const key = `${node.module}\n${Math.sign(node.distance)}\n${node.phase}`;
    groups.set(key, [...(groups.get(key) ?? []), node]);
  }
  const found = new Map<string, string>();
  for (const [key, members] of groups) {
    if (members.length < FOLD_FROM || open.has(members[0]!.module!)) continue;
    for (const member of members) found.set(member.name, `module ${key.replaceAll("\n", " ")}`);
  }
  return found;
}
