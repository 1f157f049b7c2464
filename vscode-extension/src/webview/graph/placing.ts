// Where the chunks of a graph are: one below the other, those of an open block with a frame around them.

import type { Block, Graph } from "../../graph/messages";
import { type Cut, HEIGHT, type LaidOut, type Point } from "./pieces";

export const TITLE = 22;
const GAP = 16;
const INSET = 14;
/** Of a chunk that is not laid out yet, the height for each of its statements. */
const GUESSED = 56;

export interface Frame {
  of: Block;
  x: number;
  y: number;
  width: number;
  height: number;
}

export class Placing {
  /** The upper left corner of each chunk. */
  corners: Point[] = [];
  frames: Frame[] = [];
  height = 0;
  private readonly laid: (LaidOut | undefined)[];
  private readonly blocks: Map<string, Block>;

  constructor(
    readonly graph: Graph,
    readonly cut: Cut,
  ) {
    this.laid = cut.chunks.map(() => undefined);
    this.blocks = new Map(graph.blocks.map((each) => [each.id, each]));
    this.place();
  }

  layoutOf(chunk: number): LaidOut | undefined {
    return this.laid[chunk];
  }

  set(chunk: number, laid: LaidOut): void {
    this.laid[chunk] = laid;
    this.place();
  }

  heightOf(chunk: number): number {
    const { first, end } = this.cut.chunks[chunk];
    return this.laid[chunk]?.height ?? (end - first) * GUESSED;
  }

  widthOf(chunk: number): number {
    return this.laid[chunk]?.width ?? 160;
  }

  /** The middle of a statement; where its chunk is not laid out, about there. */
  middleOf(node: number): Point {
    const chunk = this.cut.chunkOf[node];
    const { first } = this.cut.chunks[chunk];
    const corner = this.corners[chunk];
    const place = this.laid[chunk]?.places[node - first];
    return place ? { x: corner.x + place.x, y: corner.y + place.y } : { x: corner.x + 80, y: corner.y + (node - first + 0.5) * GUESSED };
  }

  sizeOf(node: number): [number, number] {
    const chunk = this.cut.chunks[this.cut.chunkOf[node]];
    return chunk.piece.sizes[node - chunk.first] ?? [80, HEIGHT];
  }

  /** The chunks that a stretch from `top` to `bottom` shows. */
  between(top: number, bottom: number): number[] {
    const found: number[] = [];
    // They are in order: the first one is found by halves.
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

  private place(): void {
    const { chunks } = this.cut;
    const open: Frame[] = [];
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
      const x = this.besides(index);
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

  /** The left edge of a chunk: so that the value that comes from the one above goes straight down. */
  private besides(chunk: number): number {
    const before = this.corners[chunk - 1];
    if (!before) {
      return 0;
    }
    const [above, here] = [this.laid[chunk - 1], this.laid[chunk]];
    const port = this.cut.chunks[chunk].piece.enter.find((each) => above?.leave[each]);
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
