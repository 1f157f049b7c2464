// Where pictures and plots are drawn, one or several beside each other.

import type { Histogram } from "../../tensorMessages";
import { Choices, Known, Part } from "./choices";
import { drawBar } from "./colorBar";
import { Scale, pixelOf, scaleOf, tableOf } from "./colors";
import { element } from "./elements";
import { imagePixels } from "./image";
import { CHANNELS, Loaded } from "./loading";
import { gridOf } from "./numbers";
import { Picture } from "./picture";
import { Curve, Plot } from "./plots";

/** A part of a comparison, or the tensor by itself. */
export interface Shown {
  part: Part;
  loaded: Loaded;
}

/** What was chosen, and what came. */
export interface Content {
  known: Known;
  choices: Choices;
  shown: Shown[];
  histogram: Histogram | undefined;
}

/** A cell was pointed at, or gone to. */
export type Pointed = (shown: Shown, channel: number, row: number, column: number, chosen: boolean) => void;

const BAR = 84;
/** Times that a matrix is longer than wide before its cells are stretched. */
const LONG = 8;
export const NAMES: Record<Part, string> = { all: "", here: "this", there: "the other", difference: "difference" };

export class Stage {
  readonly root = element("div", { className: "stage" });
  private readonly plot = new Plot();
  private pictures: Picture[] = [];
  private content: Content | undefined;
  /** Of the values, and of a difference beside them. */
  private readonly bars = [element("canvas", { className: "bar" }), element("canvas", { className: "bar" })];

  constructor(
    private readonly pointed: Pointed,
    private readonly selected: (columns: [number, number]) => void,
  ) {
    new ResizeObserver(() => this.draw()).observe(this.root);
    new MutationObserver(() => this.draw()).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  }

  clear(): void {
    this.content = undefined;
    this.root.replaceChildren();
  }

  /** Shows an element of somebody else, which draws itself. */
  lend(other: HTMLElement): void {
    this.content = undefined;
    this.root.replaceChildren(other);
  }

  show(content: Content): void {
    const { mode } = content.choices;
    this.content = content;
    if (mode === "line" || mode === "histogram") {
      this.root.replaceChildren(this.plot.root);
    } else {
      this.build(content);
    }
    this.draw();
  }

  showCursor([row, column]: [number, number]): void {
    this.pictures.forEach((each) => each.showCursor(row, column));
  }

  private build({ choices, shown }: Content): void {
    const focused = this.root.contains(document.activeElement) || document.activeElement === document.body;
    const several = choices.mode === "channels";
    this.pictures = shown.flatMap((each) =>
      Array.from({ length: channelsOf(each, choices) }, (_, channel) => {
        const title = several ? String(firstChannel(choices) + channel) : shown.length > 1 ? NAMES[each.part] : "";
        const picture = new Picture(title, !several);
        picture.pointed = (row, column, chosen) => this.pointed(each, channel, row, column, chosen);
        return picture;
      }),
    );
    const all = element("div", { className: "pictures" }, ...this.pictures.map((each) => each.root));
    this.root.replaceChildren(all, ...this.bars);
    if (focused) {
      this.pictures[0]?.focus();
    }
  }

  private draw(): void {
    const { content } = this;
    const size = { width: this.root.clientWidth, height: this.root.clientHeight };
    if (!content) {
      return;
    }
    if (content.histogram) {
      this.plot.bars(content.histogram, size);
    } else if (content.choices.mode === "line") {
      this.drawLine(content, size);
    } else {
      this.drawPictures(content, size);
    }
  }

  private drawLine({ choices, known, shown }: Content, size: { width: number; height: number }): void {
    const { slice, cells } = (shown[0] as Shown).loaded;
    const start = choices.window?.columns[0] ?? 0;
    const step = slice.stride[choices.columns] ?? 1;
    const count = slice.reduce === "range" ? cells.values.length / 2 : cells.values.length;
    const x = Float64Array.from({ length: count }, (_, index) => start + index * step);
    const length = known.shape[choices.columns] ?? 1;
    this.plot.curves(
      x,
      shown.map((each) => curveOf(each, count)),
      size,
      (low, high) => this.selected([Math.max(0, Math.floor(low)), Math.min(length, Math.ceil(high) + 1)]),
      (index) => this.pointed(shown[0] as Shown, 0, 0, index, false),
    );
  }

  private drawPictures(content: Content, size: { width: number; height: number }): void {
    const { choices, known, shown } = content;
    const count = this.pictures.length;
    const barred = choices.mode === "image" ? [] : shown.length > 1 ? [shown[0] as Shown, shown.at(-1) as Shown] : shown;
    const room = barred.length * BAR;
    const across = choices.mode === "channels" ? Math.ceil(Math.sqrt(count)) : size.width > size.height ? count : 1;
    const width = (size.width - room) / across - 12;
    const height = size.height / Math.ceil(count / across) - (count > 1 ? 28 : 6);
    let next = 0;
    for (const each of shown) {
      const { cells, slice } = each.loaded;
      const scale = scaleFor(content, each.part);
      const table = tableOf(scale.map);
      const colored = (cell: number) => pixelOf(cells.values[cell] as number, cells.odd[cell] as number, scale, table);
      const pixel = choices.mode === "image" && each.part !== "difference" ? imagePixels(cells, choices, known.dtype) : colored;
      for (let channel = 0; channel < channelsOf(each, choices); channel++) {
        const at = cells.shape.map((_, axis) => (axis === choices.channels ? channel : 0));
        const grid = gridOf(cells.shape, choices.rows, choices.columns, at);
        const square = choices.mode !== "heat" || ratio(grid.rows, grid.columns) < LONG;
        const rows = { start: choices.window?.rows[0] ?? 0, step: slice.stride[choices.rows] ?? 1 };
        const columns = { start: choices.window?.columns[0] ?? 0, step: slice.stride[choices.columns] ?? 1 };
        this.pictures[next++]?.draw({ grid, pixel, odd: cells.odd, rows, columns, square }, width, height);
      }
    }
    this.bars.forEach((bar, number) => {
      const of = barred[number];
      bar.hidden = !of;
      if (of) {
        drawBar(bar, scaleFor(content, of.part), Math.min(size.height - 8, 320));
      }
    });
    this.showCursor(choices.cursor);
  }
}

/** The channel that the first picture of a page shows. */
export function firstChannel({ channels, at }: Choices): number {
  const place = at[channels] ?? 0;
  return place - (place % CHANNELS);
}

function channelsOf({ loaded }: Shown, { mode, channels }: Choices): number {
  return mode === "channels" ? (loaded.cells.shape[channels] ?? 1) : 1;
}

function curveOf({ part, loaded }: Shown, count: number): Curve {
  const { values, odd } = loaded.cells;
  if (loaded.slice.reduce !== "range") {
    return { name: NAMES[part], values, odd };
  }
  const pick = (offset: number) => Float64Array.from({ length: count }, (_, index) => values[2 * index + offset] as number);
  return { name: NAMES[part], values: pick(0), high: pick(1), odd };
}

/** One scale for both sides of a comparison; the difference has its own, about zero. */
function scaleFor({ choices, shown }: Content, part: Part): Scale {
  const apart = part === "difference";
  const map = apart ? "diverging" : choices.map;
  if (choices.range && !apart) {
    return { map, low: choices.range[0], high: choices.range[1] };
  }
  const scales = shown.filter((each) => (each.part === "difference") === apart).map((each) => scaleOf(each.loaded.cells.values, map));
  return { map, low: Math.min(...scales.map(({ low }) => low)), high: Math.max(...scales.map(({ high }) => high)) };
}

function ratio(a: number, b: number): number {
  return Math.max(a, b) / Math.max(1, Math.min(a, b));
}
