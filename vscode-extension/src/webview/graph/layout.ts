// A worker that lays out chunks of the graph with dagre.

import { graphlib, layout } from "@dagrejs/dagre";
import type { ChunkLayout, LayoutInput } from "./chunks";

/** Values from chunks above enter at the top, and leave at the bottom. */
export function layOutChunk({ sizes, edges, enter, leave }: LayoutInput): ChunkLayout {
  const graph = new graphlib.Graph({ multigraph: true });
  graph.setGraph({ rankdir: "TB", nodesep: 22, ranksep: 30, marginx: 6, marginy: 4 });
  graph.setDefaultEdgeLabel(() => ({}));
  sizes.forEach(([width, height], index) => graph.setNode(`n${index}`, { width, height }));
  if (enter.length) {
    graph.setNode("top", { width: 1, height: 1 });
  }
  for (const port of enter) {
    graph.setNode(`t${port}`, { width: 4, height: 1 });
    graph.setEdge("top", `t${port}`, { weight: 8 });
  }
  for (const port of leave) {
    graph.setNode(`b${port}`, { width: 4, height: 1 });
  }
  edges.forEach(({ from, to }, index) => graph.setEdge(from, to, {}, String(index)));
  layout(graph);
  const place = (name: string) => {
    const { x, y } = graph.node(name) as { x: number; y: number };
    return { x, y };
  };
  const whole = graph.graph() as { width: number; height: number };
  return {
    width: whole.width,
    height: whole.height,
    places: sizes.map((_, index) => place(`n${index}`)),
    enter: Object.fromEntries(enter.map((port) => [port, place(`t${port}`)])),
    leave: Object.fromEntries(leave.map((port) => [port, place(`b${port}`)])),
    lines: edges.map(({ from, to }, index) => (graph.edge(from, to, String(index)) as { points?: { x: number; y: number }[] }).points ?? []),
  };
}

/** Only a worker has no document. */
if (typeof document === "undefined" && typeof postMessage === "function") {
  onmessage = ({ data }: MessageEvent<{ key: object; input: LayoutInput }>) => postMessage({ key: data.key, laid: layOutChunk(data.input) });
}
