// The requests for the display options.

import type { Comparison, Histogram, Slice, Statistics } from "../../tensor/messages";
import type { DisplayOptions, Part } from "./displayOptions";
import { type Cells, cellsOf } from "../page/numbers";
import type { PageRequests } from "./requests";

/** Cells of a picture, of a curve and of a page of the table: the page draws each. */
const PICTURE_CELLS = 1 << 16;
const CURVE_CELLS = 1 << 11;
const PAGE_CELLS = 1 << 14;
/** Channels of one page. */
export const CHANNELS = 36;

export interface Loaded {
  slice: Slice;
  cells: Cells;
}

interface AxisRange {
  start: number;
  stop: number;
}

/** Answers that are kept: the server does not send an unchanged one again. */
const KEPT = 3;

export class Loader {
  private readonly latest = new Map<string, Loaded>();

  constructor(
    private readonly requests: PageRequests,
    private readonly expression: string,
  ) {}

  /** Type and shape, with one element. */
  probe(): Promise<Slice> {
    return this.requests.request("nncdbg/slice", { expression: this.expression, maxElements: 1 });
  }

  picture(options: DisplayOptions, part: Part): Promise<Loaded> {
    const axes = rangesOf(options, options.mode === "line" ? [options.columns] : axesShown(options));
    const line = options.mode === "line";
    const reduce = line && options.reduce !== "stride" ? "range" : options.reduce;
    return this.slice(options, part, axes, line ? CURVE_CELLS : PICTURE_CELLS, reduce);
  }

  /** All elements of a page of rows and columns. */
  page(options: DisplayOptions, part: Part, dtype: string, rows: [number, number], columns: [number, number]): Promise<Loaded> {
    const axes = rangesOf(options, []);
    if (options.rows >= 0) {
      axes[options.rows] = { start: rows[0], stop: rows[1] };
    }
    if (options.columns >= 0) {
      axes[options.columns] = { start: columns[0], stop: columns[1] };
    }
    return this.slice(options, part, axes, PAGE_CELLS, "stride", dtype === "str" ? "json" : "base64");
  }

  private async slice(
    options: DisplayOptions,
    part: Part,
    axes: (AxisRange | object)[],
    maxElements: number,
    reduce: string,
    encoding = "base64",
  ): Promise<Loaded> {
    const compared = part === "there" || part === "difference" ? { against: this.against(options), part } : {};
    const argument = { expression: this.expression, ...(axes.length ? { axes } : {}), maxElements, reduce, encoding, ...compared };
    const key = JSON.stringify(argument);
    const before = this.latest.get(key);
    const slice = await this.requests.request<Slice>("nncdbg/slice", argument, before?.slice.version);
    const loaded = slice.unchanged && before ? before : { slice, cells: cellsOf(slice) };
    this.latest.delete(key);
    this.latest.set(key, loaded);
    if (this.latest.size > KEPT) {
      this.latest.delete(this.latest.keys().next().value as string);
    }
    return loaded;
  }

  async statistics(options: DisplayOptions, part: Part): Promise<Statistics> {
    const expression = this.expressionOf(options, part);
    type Answer = { statistics: { stats?: Statistics; error?: string }[] };
    const [found] = (await this.requests.request<Answer>("nncdbg/stats", { expressions: [expression] })).statistics;
    if (!found?.stats) {
      throw new Error(found?.error ?? "no statistics are available");
    }
    return found.stats;
  }

  histogram(options: DisplayOptions, part: Part): Promise<Histogram> {
    return this.requests.request("nncdbg/histogram", { expression: this.expressionOf(options, part), bins: options.bins });
  }

  comparison(options: DisplayOptions): Promise<Comparison> {
    return this.requests.request("nncdbg/compare", { expression: this.expression, against: this.against(options) });
  }

  /** The index of the next NaN or infinity from a position in C order on; null if there is none. */
  async nonfinite(start: number): Promise<number[] | null> {
    const { index } = await this.requests.request<{ index: number[] | null }>("nncdbg/nonfinite", { expression: this.expression, start });
    return index;
  }

  /** A part as an expression, for requests without the argument `part`. */
  private expressionOf(options: DisplayOptions, part: Part): string {
    if (part === "here" || part === "all") {
      return this.expression;
    }
    const { expression } = this.against(options);
    if (expression === undefined) {
      throw new Error("cannot show a histogram of the other branch");
    }
    return part === "there" ? expression : `(${this.expression}) - (${expression})`;
  }

  private against({ against, other }: DisplayOptions): { expression?: string; branch?: "other" } {
    if (against === "branch") {
      return { branch: "other" };
    }
    return { expression: against === "previous" ? `prev(${this.expression})` : other };
  }
}

/** The axes of which more than one index is shown. */
export function axesShown({ mode, rows, columns, channels }: DisplayOptions): number[] {
  return mode === "image" || mode === "channels" ? [rows, columns, channels] : [rows, columns];
}

/** The ranges of all axes: the window of a shown axis, one index of others. */
function rangesOf(options: DisplayOptions, shown: readonly number[]): (AxisRange | object)[] {
  const { at, rows, columns, channels, window, mode } = options;
  return at.map((place, axis) => {
    if (!shown.includes(axis)) {
      return { start: place, stop: place + 1 };
    }
    if (mode === "channels" && axis === channels) {
      const start = place - (place % CHANNELS);
      return { start, stop: start + CHANNELS };
    }
    const range = axis === rows ? window?.rows : axis === columns ? window?.columns : undefined;
    return range ? { start: range[0], stop: range[1] } : {};
  });
}
