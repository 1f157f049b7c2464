// Chunks of consecutive statements, which are laid out separately: the time is linear in the number of statements,
// and visible chunks come first.

import type { Graph, GraphEdge, GraphNode } from "../../graph/messages";
import { merged } from "./simplified";

export interface Point {
  x: number;
  y: number;
}

/** The input of a chunk's layout.  Names are `n` and an index in the chunk, or `t` (top) or `b` (bottom) and an index in the graph. */
export interface LayoutInput {
  sizes: [number, number][];
  edges: { from: string; to: string }[];
  enter: number[];
  leave: number[];
}

export interface ChunkLayout {
  width: number;
  height: number;
  places: Point[];
  enter: Record<number, Point>;
  leave: Record<number, Point>;
  lines: Point[][];
}

/** Statements `first` to `end` of one block.  `of` are the edges of `input`. */
export interface Chunk {
  block: string;
  first: number;
  end: number;
  input: LayoutInput;
  of: GraphEdge[];
}

const MOST = 40;
const LETTER = 6.7;
export const HEIGHT = 40;

export interface ChunkedGraph {
  chunks: Chunk[];
  chunkOf: Int32Array;
  /** The edges to the next iteration. */
  back: GraphEdge[];
}

export function chunked({ nodes, edges }: Graph): ChunkedGraph {
  const chunks: Chunk[] = [];
  const chunkOf = new Int32Array(nodes.length);
  nodes.forEach((node, index) => {
    let last = chunks.at(-1);
    if (!last || last.block !== node.block || last.end - last.first >= MOST) {
      last = { block: node.block, first: index, end: index, input: { sizes: [], edges: [], enter: [], leave: [] }, of: [] };
      chunks.push(last);
    }
    last.end = index + 1;
    last.input.sizes.push([widthOf(node), HEIGHT]);
    chunkOf[index] = chunks.length - 1;
  });
  const ports = { enter: chunks.map(() => new Set<number>()), leave: chunks.map(() => new Set<number>()) };
  const back: GraphEdge[] = [];
  for (const edge of merged(edges)) {
    const [from, to, , carried] = edge;
    if (from < 0) {
      continue;
    }
    if (carried || from >= to) {
      back.push(edge);
      continue;
    }
    const [start, end] = [chunkOf[from], chunkOf[to]];
    if (start === end) {
      join(chunks[start], edge, `n${from - chunks[start].first}`, `n${to - chunks[start].first}`);
      continue;
    }
    joinThrough(chunks, ports, edge, start, end);
  }
  chunks.forEach((chunk, index) => {
    chunk.input.enter = [...ports.enter[index]];
    chunk.input.leave = [...ports.leave[index]];
  });
  return { chunks, chunkOf, back };
}

/** Adds an edge through chunks: a value has one line from chunk to chunk for all statements that read it. */
function joinThrough(chunks: Chunk[], ports: { enter: Set<number>[]; leave: Set<number>[] }, edge: GraphEdge, start: number, end: number): void {
  const [from, to] = edge;
  for (let index = start; index <= end; index++) {
    const chunk = chunks[index];
    if (index > start) {
      ports.enter[index].add(from);
    }
    if (index < end && !ports.leave[index].has(from)) {
      ports.leave[index].add(from);
      join(chunk, edge, index === start ? `n${from - chunk.first}` : `t${from}`, `b${from}`);
    }
  }
  const last = chunks[end];
  join(last, edge, `t${from}`, `n${to - last.first}`);
}

function join(chunk: Chunk, edge: GraphEdge, from: string, to: string): void {
  chunk.input.edges.push({ from, to });
  chunk.of.push(edge);
}

function widthOf({ label, values, type }: GraphNode): number {
  const longest = Math.max(label.length + 3, Math.min(28, (values[0] ?? "").length), Math.min(28, type.length));
  return Math.min(210, Math.max(80, longest * LETTER + 26));
}
