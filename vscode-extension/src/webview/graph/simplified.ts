// What the graph tab draws of a graph: without states and constants, unless the user shows them, and with one edge for
// all values from one statement to another.

import type { Graph, GraphEdge } from "../../graph/messages";

/** The graph without the statements that only initialize or update states or compute constants, and without states as edges. */
export function withoutStates(graph: Graph): Graph {
  const indices = new Map<number, number>();
  graph.nodes.forEach(({ aside }, index) => !aside && indices.set(index, indices.size));
  const states = new Set(graph.states);
  const edges = graph.edges.flatMap(([from, to, value, carried]): GraphEdge[] => {
    const [start, end] = [from < 0 ? from : indices.get(from), indices.get(to)];
    return start === undefined || end === undefined || states.has(value) ? [] : [[start, end, value, carried]];
  });
  return { ...graph, nodes: graph.nodes.filter(({ aside }) => !aside), edges };
}

/** One edge for all that lead from one statement to another; its last item is their number, if there are several. */
export function merged(edges: readonly GraphEdge[]): GraphEdge[] {
  const byEnds = new Map<string, GraphEdge>();
  for (const [from, to, value, carried] of edges) {
    const key = `${from} ${to} ${carried}`;
    const edge = byEnds.get(key);
    if (edge) {
      edge[4] = (edge[4] ?? 1) + 1;
    } else {
      byEnds.set(key, [from, to, value, carried]);
    }
  }
  return [...byEnds.values()];
}
