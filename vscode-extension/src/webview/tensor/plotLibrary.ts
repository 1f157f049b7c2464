// uPlot, which the extension sends for the first plot.

import type uPlot from "uplot";

export type UPlot = typeof uPlot;

/** The global of its file. */
declare const uplot: { default: UPlot } | undefined;

export class PlotLibrary {
  private waiting: (() => void)[] = [];

  /** `request` has the extension send the file; `nonce` is the one of the page's scripts. */
  constructor(
    private readonly request: () => void,
    private readonly nonce: string,
  ) {}

  /** uPlot; undefined if it is not loaded yet: then `ready` is called later. */
  get(ready: () => void): UPlot | undefined {
    if (typeof uplot !== "undefined") {
      return uplot.default;
    }
    if (this.waiting.push(ready) === 1) {
      this.request();
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
