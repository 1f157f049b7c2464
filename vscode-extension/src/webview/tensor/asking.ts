// Requests to the session, by way of the host; what is asked of an old state is abandoned.

import { Early, FromView, Request, ToView, keyOf } from "../../tensor/messages";

/** The answer is wanted no more. */
export class Abandoned extends Error {}

interface Waiting {
  answered(body: unknown): void;
  failed(error: Error): void;
}

export class Asking {
  private readonly waiting = new Map<number, Waiting>();
  private last = 0;
  /** Whether answers may be those of the moment that was shown before. */
  kept = false;
  /** What has been answered before it was asked. */
  early: readonly Early[] = [];

  constructor(private readonly send: (message: FromView) => void) {}

  ask<Body>(request: Request, argument: object, known?: number): Promise<Body> {
    const question = { request, arguments: argument, known };
    const key = keyOf(question);
    const early = this.early.find((each) => each.key === key);
    if (early) {
      return Promise.resolve(early.body as Body);
    }
    const id = ++this.last;
    this.send({ kind: "ask", id, kept: this.kept, ...question });
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { answered: (body) => resolve(body as Body), failed: reject });
    });
  }

  hear(message: ToView): void {
    if (message.kind !== "answer" && message.kind !== "failed") {
      return;
    }
    const waiting = this.waiting.get(message.id);
    this.waiting.delete(message.id);
    if (message.kind === "answer") {
      waiting?.answered(message.body);
    } else {
      waiting?.failed(new Error(message.message));
    }
  }

  abandonAll(): void {
    for (const [id, waiting] of this.waiting) {
      this.send({ kind: "abandon", id });
      waiting.failed(new Abandoned());
    }
    this.waiting.clear();
  }
}
