// Where pictures and plots are drawn, one or several beside each other.

import type { Histogram } from "../../tensor/messages";
import { Choices, Known, Part } from "./choices";
import { drawBar } from "../color/colorBar";
import { Scale, painter, scaleOf } from "../color/colors";
import { element } from "../page/elements";
import { imagePixels } from "./image";
import type { Drawing, Library } from "./library";
import { CHANNELS, Loaded } from "./loading";
import { gridOf } from "../page/numbers";
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

const GAP = 12;
/** CSS pixels that each side of a comparison has at least, where the view is so wide. */
const SIDE = 320;
export const NAMES: Record<Part, string> = { all: "", here: "this value", there: "other value", difference: "difference" };

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
    private readonly library: Library,
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

  showCursor([row, column]: [number, number], reveal: boolean): void {
    this.pictures.forEach((each) => each.showCursor(row, column, reveal));
  }

  /** What is drawn, from left to right; empty for a table. */
  get drawn(): HTMLCanvasElement[] {
    if (!this.content) {
      return [];
    }
    const plotted = this.plot.root.isConnected ? [this.plot.drawn] : [...this.pictures.map(({ drawn }) => drawn), ...this.bars.filter((each) => !each.hidden)];
    return plotted.filter((each) => each !== undefined);
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
    const all = element("div", { className: several ? "pictures" : "pictures beside" }, ...this.pictures.map((each) => each.root));
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
    const { mode, log } = content.choices;
    if (!content.histogram && mode !== "line") {
      this.drawPictures(content, size);
      return;
    }
    const drawing = this.library.get(() => this.draw());
    if (drawing && content.histogram) {
      this.plot.bars(drawing, content.histogram, size, log);
    } else if (drawing) {
      this.drawLine(drawing, content, size);
    }
  }

  private drawLine(drawing: Drawing, { choices, known, shown }: Content, size: { width: number; height: number }): void {
    const { slice, cells } = shown[0].loaded;
    const start = choices.window?.columns[0] ?? 0;
    const step = slice.stride[choices.columns] ?? 1;
    const count = slice.reduce === "range" ? cells.values.length / 2 : cells.values.length;
    const x = Float64Array.from({ length: count }, (_, index) => start + index * step);
    const length = known.shape[choices.columns] ?? 1;
    this.plot.curves(
      drawing,
      x,
      shown.map((each) => curveOf(each, count)),
      size,
      (low, high) => this.selected([Math.max(0, Math.floor(low)), Math.min(length, Math.ceil(high) + 1)]),
      (index) => this.pointed(shown[0], 0, 0, index, false),
      choices.log,
    );
  }

  private drawPictures(content: Content, size: { width: number; height: number }): void {
    const { choices, known, shown } = content;
    const count = this.pictures.length;
    const room = this.drawBars(content, size.height);
    const channels = choices.mode === "channels";
    const across = channels ? Math.ceil(Math.sqrt(count)) : count;
    const whole = size.width - room - GAP;
    const width = Math.max(whole / across - GAP, channels ? 0 : Math.min(whole - GAP, SIDE));
    const height = size.height / (channels ? Math.ceil(count / across) : 1) - (count > 1 ? 28 : 6);
    let next = 0;
    for (const each of shown) {
      const { cells, slice } = each.loaded;
      const paint = painter(scaleFor(content, each.part));
      const colored = (cell: number) => paint(cells.values[cell], cells.odd[cell]);
      const pixel = choices.mode === "image" && each.part !== "difference" ? imagePixels(cells, choices, known.dtype) : colored;
      for (let channel = 0; channel < channelsOf(each, choices); channel++) {
        const at = cells.shape.map((_, axis) => (axis === choices.channels ? channel : 0));
        const grid = gridOf(cells.shape, choices.rows, choices.columns, at);
        const rows = { start: choices.window?.rows[0] ?? 0, step: slice.stride[choices.rows] ?? 1 };
        const columns = { start: choices.window?.columns[0] ?? 0, step: slice.stride[choices.columns] ?? 1 };
        this.pictures[next++]?.draw({ grid, pixel, odd: cells.odd, rows, columns }, width, height);
      }
    }
    this.showCursor(choices.cursor, false);
  }

  /** The color bars: of the values, and of a difference.  Returns the width that they take. */
  private drawBars(content: Content, height: number): number {
    const { choices, shown } = content;
    const ends = shown.length > 1 ? [shown[0], shown.at(-1) as Shown] : shown;
    const barred = choices.mode === "image" ? ends.filter(({ part }) => part === "difference") : ends;
    return this.bars.reduce((room, bar, number) => {
      const of = barred[number];
      bar.hidden = !of;
      return of ? room + GAP + drawBar(bar, scaleFor(content, of.part), Math.min(height - 8, 320)) : room;
    }, 0);
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
  const pick = (offset: number) => Float64Array.from({ length: count }, (_, index) => values[2 * index + offset]);
  return { name: NAMES[part], values: pick(0), high: pick(1), odd };
}

/** One scale for both sides of a comparison; the difference has its own, about zero. */
function scaleFor({ choices, shown }: Content, part: Part): Scale {
  const apart = part === "difference";
  const map = apart ? "diverging" : choices.map;
  const scales = shown.filter((each) => (each.part === "difference") === apart).map((each) => scaleOf(each.loaded.cells.values, map, choices.log));
  const thresholds = scales.flatMap(({ threshold }) => threshold ?? []);
  const log = thresholds.length ? { threshold: Math.min(...thresholds) } : {};
  if (choices.range && !apart) {
    return { map, low: choices.range[0], high: choices.range[1], ...log };
  }
  return { map, low: Math.min(...scales.map(({ low }) => low)), high: Math.max(...scales.map(({ high }) => high)), ...log };
}
