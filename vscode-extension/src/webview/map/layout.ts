// The positions of nodes, clusters and edges, from dagre's layered layout.

import { graphlib, layout } from "@dagrejs/dagre";
import type { Cluster, Edge, MapNode, Neighborhood } from "./answer";

export interface Box<Of> {
  of: Of;
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Line {
  of: Edge;
  points: { x: number; y: number }[];
}

export interface Layout {
  width: number;
  height: number;
  clusters: Box<Cluster>[];
  nodes: Box<MapNode>[];
  lines: Line[];
}

const NARROW = 64;
const WIDE = 190;
const LETTER = 6.8;
const PADDING = 18;
export const TITLE = 18;

function sizeOf(node: MapNode): { width: number; height: number } {
  const longest = Math.max(node.label.length, (node.values[0] ?? "").length);
  const width = Math.min(WIDE, Math.max(NARROW, longest * LETTER + PADDING));
  return { width, height: node.values.length ? 38 : 26 };
}

/** A key of all that a layout depends on.  Most steps change only the state of nodes. */
function layoutKey({ clusters, nodes, edges }: Neighborhood): string {
  return JSON.stringify([
    clusters.map(({ id, parent }) => [id, parent]),
    nodes.map((node) => [node.id, node.cluster, sizeOf(node)]),
    edges.map(({ from, to }) => [from, to]),
  ]);
}

let last: { shape: string; layout: Layout } | undefined;

/** The layout of a neighborhood.  With the same shape as before, the positions stay the same. */
export function laidOut(neighborhood: Neighborhood): Layout {
  const shape = layoutKey(neighborhood);
  const layout = last?.shape === shape ? withPositionsOf(last.layout, neighborhood) : computed(neighborhood);
  last = { shape, layout };
  return layout;
}

function withPositionsOf(layout: Layout, { clusters, nodes, edges }: Neighborhood): Layout {
  const byId = new Map(clusters.map((each) => [each.id, each]));
  return {
    ...layout,
    clusters: layout.clusters.map((each) => ({ ...each, of: byId.get(each.of.id) ?? each.of })),
    nodes: layout.nodes.map((each, index) => ({ ...each, of: nodes[index] })),
    lines: layout.lines.map((each, index) => ({ ...each, of: edges[index] })),
  };
}

function computed({ clusters, nodes, edges }: Neighborhood): Layout {
  const graph = new graphlib.Graph({ compound: true, multigraph: true });
  graph.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 26, marginx: 10, marginy: 10 });
  // Without the empty clusters.
  const inhabited = clusters.filter(({ id }) => nodes.some((node) => node.cluster === id) || clusters.some((each) => each.parent === id));
  for (const { id } of inhabited) {
    graph.setNode(`cluster ${id}`, {});
  }
  for (const { id, parent } of inhabited) {
    if (parent !== null) {
      graph.setParent(`cluster ${id}`, `cluster ${parent}`);
    }
  }
  for (const node of nodes) {
    graph.setNode(node.id, sizeOf(node));
    graph.setParent(node.id, `cluster ${node.cluster}`);
  }
  edges.forEach((edge, index) => graph.setEdge(edge.from, edge.to, {}, String(index)));
  layout(graph);
  const box = <Of>(of: Of, name: string): Box<Of> => {
    const { x, y, width, height } = graph.node(name) as Required<Box<Of>>;
    return { of, x: x - width / 2, y: y - height / 2, width, height };
  };
  const size = graph.graph() as { width: number; height: number };
  return withTitles({
    width: size.width,
    height: size.height,
    clusters: inhabited.map((each) => box(each, `cluster ${each.id}`)),
    nodes: nodes.map((each) => box(each, each.id)),
    lines: edges.map((of, index) => ({ of, points: (graph.edge(of.from, of.to, String(index)) as { points?: { x: number; y: number }[] }).points ?? [] })),
  });
}

/** Adds room for the title of each cluster, which dagre does not support: all below its upper edge moves down. */
function withTitles(layout: Layout): Layout {
  const edges = [...new Set(layout.clusters.map(({ y }) => Math.round(y)))];
  const moved = (y: number) => y + TITLE * edges.filter((edge) => edge < y - 1).length;
  const box = <Of>(each: Box<Of>): Box<Of> => {
    const y = moved(each.y);
    return { ...each, y, height: moved(each.y + each.height) - y };
  };
  return {
    width: layout.width,
    height: moved(layout.height),
    clusters: layout.clusters.map(box),
    nodes: layout.nodes.map((each) => ({ ...each, y: moved(each.y) })),
    lines: layout.lines.map(({ of, points }) => ({ of, points: points.map(({ x, y }) => ({ x, y: moved(y) })) })),
  };
}
