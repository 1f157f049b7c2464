// A graph cut into chunks of consecutive statements, each laid out by itself: the time that it takes grows with
// the number of statements only, and what is seen first is there first.

import type { Graph, GraphEdge, GraphNode } from "../../graph/messages";

export interface Point {
  x: number;
  y: number;
}

/** What the layout of a chunk needs: names are `n` and a position in the chunk, `t` and `b` and a position in the graph. */
export interface Piece {
  sizes: [number, number][];
  edges: { from: string; to: string }[];
  enter: number[];
  leave: number[];
}

export interface LaidOut {
  width: number;
  height: number;
  places: Point[];
  enter: Record<number, Point>;
  leave: Record<number, Point>;
  lines: Point[][];
}

/** Statements `first` to `end` of one block; `of` are the edges of the piece. */
export interface Chunk {
  block: string;
  first: number;
  end: number;
  piece: Piece;
  of: GraphEdge[];
}

const MOST = 40;
const LETTER = 6.7;
export const HEIGHT = 40;

export interface Cut {
  chunks: Chunk[];
  chunkOf: Int32Array;
  /** Those that go back: to the next iteration. */
  back: GraphEdge[];
}

export function cut({ nodes, edges }: Graph): Cut {
  const chunks: Chunk[] = [];
  const chunkOf = new Int32Array(nodes.length);
  nodes.forEach((node, index) => {
    let last = chunks.at(-1);
    if (!last || last.block !== node.block || last.end - last.first >= MOST) {
      last = { block: node.block, first: index, end: index, piece: { sizes: [], edges: [], enter: [], leave: [] }, of: [] };
      chunks.push(last);
    }
    last.end = index + 1;
    last.piece.sizes.push([widthOf(node), HEIGHT]);
    chunkOf[index] = chunks.length - 1;
  });
  const ports = { enter: chunks.map(() => new Set<number>()), leave: chunks.map(() => new Set<number>()) };
  const back: GraphEdge[] = [];
  for (const edge of edges) {
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
    through(chunks, ports, edge, start, end);
  }
  chunks.forEach((chunk, index) => {
    chunk.piece.enter = [...ports.enter[index]];
    chunk.piece.leave = [...ports.leave[index]];
  });
  return { chunks, chunkOf, back };
}

/** A value has one line from chunk to chunk, however many statements below read it. */
function through(chunks: Chunk[], ports: { enter: Set<number>[]; leave: Set<number>[] }, edge: GraphEdge, start: number, end: number): void {
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
  chunk.piece.edges.push({ from, to });
  chunk.of.push(edge);
}

function widthOf({ label, values, type }: GraphNode): number {
  const longest = Math.max(label.length + 3, Math.min(28, (values[0] ?? "").length), Math.min(28, type.length));
  return Math.min(210, Math.max(80, longest * LETTER + 26));
}
