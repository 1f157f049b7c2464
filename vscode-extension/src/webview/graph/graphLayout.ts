// The positions of a graph's chunks: one below the other, with a frame around those of an expanded block.

import type { Block, Graph } from "../../graph/messages";
import { type ChunkedGraph, HEIGHT, type ChunkLayout, type Point } from "./chunks";

export const TITLE = 22;
const GAP = 16;
const INSET = 14;
/** The height of a statement in a chunk that is not laid out yet. */
const ESTIMATED = 56;

export interface BlockFrame {
  of: Block;
  x: number;
  y: number;
  width: number;
  height: number;
}

export class GraphLayout {
  /** The upper left corner of each chunk. */
  corners: Point[] = [];
  frames: BlockFrame[] = [];
  height = 0;
  private readonly laid: (ChunkLayout | undefined)[];
  private readonly blocks: Map<string, Block>;

  constructor(
    readonly graph: Graph,
    readonly chunked: ChunkedGraph,
  ) {
    this.laid = chunked.chunks.map(() => undefined);
    this.blocks = new Map(graph.blocks.map((each) => [each.id, each]));
    this.place();
  }

  layoutOf(chunk: number): ChunkLayout | undefined {
    return this.laid[chunk];
  }

  set(chunk: number, laid: ChunkLayout): void {
    this.laid[chunk] = laid;
    this.place();
  }

  heightOf(chunk: number): number {
    const { first, end } = this.chunked.chunks[chunk];
    return this.laid[chunk]?.height ?? (end - first) * ESTIMATED;
  }

  widthOf(chunk: number): number {
    return this.laid[chunk]?.width ?? 160;
  }

  /** The middle of a statement; an estimate if its chunk is not laid out yet. */
  middleOf(node: number): Point {
    const chunk = this.chunked.chunkOf[node];
    const { first } = this.chunked.chunks[chunk];
    const corner = this.corners[chunk];
    const place = this.laid[chunk]?.places[node - first];
    return place ? { x: corner.x + place.x, y: corner.y + place.y } : { x: corner.x + 80, y: corner.y + (node - first + 0.5) * ESTIMATED };
  }

  sizeOf(node: number): [number, number] {
    const chunk = this.chunked.chunks[this.chunked.chunkOf[node]];
    return chunk.input.sizes[node - chunk.first] ?? [80, HEIGHT];
  }

  /** The chunks between two heights. */
  between(top: number, bottom: number): number[] {
    const found: number[] = [];
    // Binary search of the first one.
    let [low, high] = [0, this.corners.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.corners[middle].y + this.heightOf(middle) < top) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    for (let chunk = low; chunk < this.corners.length && this.corners[chunk].y <= bottom; chunk++) {
      found.push(chunk);
    }
    return found;
  }

  isLaidOut(node: number): boolean {
    return this.laid[this.chunked.chunkOf[node]] !== undefined;
  }

  /** The chunk to lay out next: that of the wanted statement, else the nearest to a height; -1 if all are laid out. */
  nextChunk(wanted: number, height: number): number {
    const wantedChunk = wanted >= 0 ? this.chunked.chunkOf[wanted] : -1;
    let [next, least] = [-1, Infinity];
    this.corners.forEach(({ y }, chunk) => {
      const distance = chunk === wantedChunk ? -1 : Math.abs(y + this.heightOf(chunk) / 2 - height);
      if (!this.laid[chunk] && distance < least) {
        [next, least] = [chunk, distance];
      }
    });
    return next;
  }

  /** The index of the statement at a point; -1 if there is none. */
  nodeAt({ x, y }: Point): number {
    for (const chunk of this.between(y, y)) {
      const { first, end } = this.chunked.chunks[chunk];
      for (let node = this.laid[chunk] ? first : end; node < end; node++) {
        const [middle, [width, height]] = [this.middleOf(node), this.sizeOf(node)];
        if (Math.abs(x - middle.x) <= width / 2 && Math.abs(y - middle.y) <= height / 2) {
          return node;
        }
      }
    }
    return -1;
  }

  /** The innermost frame with its title at a point. */
  frameTitledAt(point: Point): BlockFrame | undefined {
    return this.frames.findLast(({ x, y, width }) => point.x >= x && point.x <= x + width && point.y >= y && point.y <= y + TITLE);
  }

  private place(): void {
    const { chunks } = this.chunked;
    const open: BlockFrame[] = [];
    this.frames = [];
    this.corners = [];
    let y = 0;
    chunks.forEach(({ block }, index) => {
      const path = this.pathOf(block);
      const shared = open.findIndex((frame, depth) => frame.of !== path[depth]);
      for (const frame of open.splice(shared < 0 ? Math.min(open.length, path.length) : shared)) {
        y += INSET / 2;
        frame.height = y - frame.y;
      }
      for (const each of path.slice(open.length)) {
        const frame = { of: each, x: Infinity, y, width: -Infinity, height: 0 };
        y += TITLE;
        open.push(frame);
        this.frames.push(frame);
      }
      const x = this.leftOf(index);
      this.corners.push({ x, y });
      open.forEach((frame, depth) => {
        const inset = INSET * (path.length - depth);
        frame.x = Math.min(frame.x, x - inset);
        frame.width = Math.max(frame.width, x + this.widthOf(index) + inset);
      });
      y += this.heightOf(index) + GAP;
    });
    for (const frame of open) {
      frame.height = y - frame.y;
    }
    this.frames.forEach((frame) => (frame.width -= frame.x));
    this.height = y;
  }

  /** The left edge of a chunk, for which a value from the chunk above has a vertical line. */
  private leftOf(chunk: number): number {
    const before = this.corners[chunk - 1];
    if (!before) {
      return 0;
    }
    const [above, here] = [this.laid[chunk - 1], this.laid[chunk]];
    const port = this.chunked.chunks[chunk].input.enter.find((each) => above?.leave[each]);
    if (port === undefined || !above || !here) {
      return before.x + (this.widthOf(chunk - 1) - this.widthOf(chunk)) / 2;
    }
    return before.x + above.leave[port].x - here.enter[port].x;
  }

  private pathOf(id: string): Block[] {
    const path: Block[] = [];
    for (let block = this.blocks.get(id); block; block = block.parent === null ? undefined : this.blocks.get(block.parent)) {
      path.unshift(block);
    }
    return path;
  }
}
