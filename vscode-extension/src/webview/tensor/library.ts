// uPlot, which the host sends when something is plotted first.

import type uPlot from "uplot";

export type Drawing = typeof uPlot;

/** What its file defines. */
declare const uplot: { default: Drawing } | undefined;

export class Library {
  private waiting: (() => void)[] = [];

  /** `ask` has the host send the file; `nonce` is that of the scripts of this page. */
  constructor(
    private readonly ask: () => void,
    private readonly nonce: string,
  ) {}

  /** uPlot; undefined while it is not here yet: `ready` is called then. */
  get(ready: () => void): Drawing | undefined {
    if (typeof uplot !== "undefined") {
      return uplot.default;
    }
    if (this.waiting.push(ready) === 1) {
      this.ask();
    }
    return undefined;
  }

  run(text: string): void {
    const script = document.createElement("script");
    script.nonce = this.nonce;
    script.textContent = text;
    document.head.append(script);
    this.waiting.splice(0).forEach((ready) => ready());
  }
}
