// Requests that the extension sends to the debug server for the page.

import { type EarlyAnswer, type FromTensor, type TensorRequest, type ToTensor, keyOf } from "../../tensor/messages";

/** The request was canceled: a newer one replaces it. */
export class Canceled extends Error {}

export class PageRequests {
  private readonly pending = new Map<number, { resolve(body: unknown): void; reject(error: Error): void }>();
  private last = 0;
  /** Whether kept answers of an earlier moment are sufficient. */
  kept = false;
  /** Answers that came with the moment. */
  early: readonly EarlyAnswer[] = [];

  constructor(private readonly send: (message: FromTensor) => void) {}

  /** `known` is the version of the last answer. */
  request<Body>(command: TensorRequest["command"], argument: object, known?: number): Promise<Body> {
    const request = { command, arguments: argument, known };
    const key = keyOf(request);
    const early = this.early.find((each) => each.key === key);
    if (early) {
      return Promise.resolve(early.body as Body);
    }
    const id = ++this.last;
    this.send({ kind: "request", id, kept: this.kept, request });
    return new Promise((resolve, reject) => {
      this.pending.set(id, { resolve: (body) => resolve(body as Body), reject });
    });
  }

  receive(message: Extract<ToTensor, { kind: "answer" | "failed" }>): void {
    const request = this.pending.get(message.id);
    this.pending.delete(message.id);
    if (message.kind === "answer") {
      request?.resolve(message.body);
    } else {
      request?.reject(new Error(message.message));
    }
  }

  cancelAll(): void {
    for (const [id, request] of this.pending) {
      this.send({ kind: "cancel", id });
      request.reject(new Canceled());
    }
    this.pending.clear();
  }
}
