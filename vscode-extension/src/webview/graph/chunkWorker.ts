// The worker that lays out chunks, one at a time.

import type { ChunkLayout, LayoutInput } from "./chunks";

export class ChunkWorker {
  private busy = false;
  /** The number of graphs until now: results of earlier graphs are discarded. */
  private graph = 0;

  constructor(
    private readonly worker: Worker,
    done: (chunk: number, layout: ChunkLayout) => void,
    failed: (message: string) => void,
  ) {
    worker.onmessage = ({ data: { key, laid } }: MessageEvent<{ key: { graph: number; chunk: number }; laid: ChunkLayout }>) => {
      if (key.graph === this.graph) {
        this.busy = false;
        done(key.chunk, laid);
      }
    };
    worker.onerror = ({ message }) => failed(`the layout failed: ${message}`);
  }

  startGraph(): void {
    this.graph++;
    this.busy = false;
  }

  /** Lays out a chunk, unless another one is in progress. */
  layOut(chunk: number, input: LayoutInput): void {
    if (!this.busy) {
      this.busy = true;
      this.worker.postMessage({ key: { graph: this.graph, chunk }, input });
    }
  }
}
