// What is asked of the server for each choice.

import type { Comparison, Histogram, Slice, Statistics } from "../../tensor/messages";
import type { Asking } from "./asking";
import type { Choices, Part } from "./choices";
import { Cells, cellsOf } from "../page/numbers";

/** Elements of a picture: its cells come in a message, and are drawn one by one. */
const PICTURE = 1 << 16;
const CURVE = 1 << 11;
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

/** Pictures that are there to be shown again if nothing has changed. */
const KEPT = 3;

export class Loading {
  private readonly latest = new Map<string, Loaded>();

  constructor(
    private readonly asking: Asking,
    private readonly expression: string,
  ) {}

  /** Type and shape, at the cost of one element. */
  probe(): Promise<Slice> {
    return this.asking.ask("nncdbg/slice", { expression: this.expression, maxElements: 1 });
  }

  picture(choices: Choices, part: Part): Promise<Loaded> {
    const axes = whole(choices, choices.mode === "line" ? [choices.columns] : axesShown(choices));
    const line = choices.mode === "line";
    const reduce = line && choices.reduce !== "stride" ? "range" : choices.reduce;
    return this.slice(choices, part, axes, line ? CURVE : PICTURE, reduce);
  }

  /** Every element of a page of rows and columns. */
  page(choices: Choices, part: Part, dtype: string, rows: [number, number], columns: [number, number]): Promise<Loaded> {
    const axes = whole(choices, []);
    if (choices.rows >= 0) {
      axes[choices.rows] = { start: rows[0], stop: rows[1] };
    }
    if (choices.columns >= 0) {
      axes[choices.columns] = { start: columns[0], stop: columns[1] };
    }
    return this.slice(choices, part, axes, 1 << 14, "stride", dtype === "str" ? "json" : "base64");
  }

  private async slice(
    choices: Choices,
    part: Part,
    axes: (AxisRange | object)[],
    maxElements: number,
    reduce: string,
    encoding = "base64",
  ): Promise<Loaded> {
    const compared = part === "there" || part === "difference" ? { against: this.against(choices), part } : {};
    const asked = {
      expression: this.expression,
      ...(axes.length ? { axes } : {}),
      maxElements,
      reduce,
      encoding,
      ...compared,
    };
    const key = JSON.stringify(asked);
    const before = this.latest.get(key);
    const slice = await this.asking.ask<Slice>("nncdbg/slice", asked, before?.slice.version);
    const loaded = slice.unchanged && before ? before : { slice, cells: cellsOf(slice) };
    this.latest.delete(key);
    this.latest.set(key, loaded);
    if (this.latest.size > KEPT) {
      this.latest.delete(this.latest.keys().next().value as string);
    }
    return loaded;
  }

  async statistics(choices: Choices, part: Part): Promise<Statistics> {
    const expression = this.expressionOf(choices, part);
    const answer = await this.asking.ask<{ statistics: { stats?: Statistics; error?: string }[] }>("nncdbg/stats", {
      expressions: [expression],
    });
    const [found] = answer.statistics;
    if (!found?.stats) {
      throw new Error(found?.error ?? "no statistics are available");
    }
    return found.stats;
  }

  histogram(choices: Choices, part: Part): Promise<Histogram> {
    return this.asking.ask("nncdbg/histogram", { expression: this.expressionOf(choices, part), bins: choices.bins });
  }

  comparison(choices: Choices): Promise<Comparison> {
    return this.asking.ask("nncdbg/compare", { expression: this.expression, against: this.against(choices) });
  }

  /** The index of the next NaN or infinity from a position in C order on; null if there is none. */
  async nonfinite(start: number): Promise<number[] | null> {
    const { index } = await this.asking.ask<{ index: number[] | null }>("nncdbg/nonfinite", { expression: this.expression, start });
    return index;
  }

  /** What a part is as an expression, for requests that know of no other. */
  private expressionOf(choices: Choices, part: Part): string {
    if (part === "here" || part === "all") {
      return this.expression;
    }
    const { expression } = this.against(choices);
    if (expression === undefined) {
      throw new Error("cannot show a histogram of the other branch");
    }
    return part === "there" ? expression : `(${this.expression}) - (${expression})`;
  }

  private against({ against, other }: Choices): { expression?: string; branch?: "other" } {
    if (against === "branch") {
      return { branch: "other" };
    }
    return { expression: against === "previous" ? `prev(${this.expression})` : other };
  }
}

/** The axes of which more than one place is shown. */
export function axesShown({ mode, rows, columns, channels }: Choices): number[] {
  return mode === "image" || mode === "channels" ? [rows, columns, channels] : [rows, columns];
}

/** Ranges of all axes: of those that are shown the window, of the others one place. */
function whole(choices: Choices, shown: readonly number[]): (AxisRange | object)[] {
  const { at, rows, columns, channels, window, mode } = choices;
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
