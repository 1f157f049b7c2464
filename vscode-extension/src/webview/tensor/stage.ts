// Pictures and plots, one or several beside each other.

import { type Content, PART_NAMES, type Shown } from "./content";
import type { DisplayOptions, Part } from "./displayOptions";
import { drawBar } from "../color/colorBar";
import { type Scale, painter, scaleOf } from "../color/colors";
import { element, onThemeChange } from "../page/elements";
import { imagePixels } from "./imagePixels";
import type { PlotLibrary, UPlot } from "./plotLibrary";
import { CHANNELS } from "./loader";
import { gridOf } from "../page/numbers";
import { Picture } from "./picture";
import { type Curve, PlotView } from "./plots";

/** The pointer is over a cell, or the user has chosen it. */
export type Pointed = (shown: Shown, channel: number, row: number, column: number, chosen: boolean) => void;

const GAP = 12;
/** The least width of each side of a comparison in CSS pixels, if the view is wide enough. */
const SIDE = 320;

export class Stage {
  readonly root = element("div", { className: "stage" });
  private readonly plot = new PlotView();
  private pictures: Picture[] = [];
  private content: Content | undefined;
  /** The color bars of the values and of a difference. */
  private readonly bars = [element("canvas", { className: "bar" }), element("canvas", { className: "bar" })];

  constructor(
    private readonly pointed: Pointed,
    private readonly selected: (columns: [number, number]) => void,
    private readonly library: PlotLibrary,
  ) {
    new ResizeObserver(() => this.draw()).observe(this.root);
    onThemeChange(() => this.draw());
  }

  clear(): void {
    this.content = undefined;
    this.root.replaceChildren();
  }

  /** Shows an element that draws itself. */
  showElement(other: HTMLElement): void {
    this.content = undefined;
    this.root.replaceChildren(other);
  }

  show(content: Content): void {
    const { mode } = content.options;
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

  /** The canvases from left to right; empty for a table. */
  get canvases(): HTMLCanvasElement[] {
    if (!this.content) {
      return [];
    }
    const plotted = this.plot.root.isConnected ? [this.plot.drawn] : [...this.pictures.map(({ drawn }) => drawn), ...this.bars.filter((each) => !each.hidden)];
    return plotted.filter((each) => each !== undefined);
  }

  private build({ options, shown }: Content): void {
    const focused = this.root.contains(document.activeElement) || document.activeElement === document.body;
    const several = options.mode === "channels";
    this.pictures = shown.flatMap((each) =>
      Array.from({ length: channelsOf(each, options) }, (_, channel) => {
        const title = several ? String(firstChannel(options) + channel) : shown.length > 1 ? PART_NAMES[each.part] : "";
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
    const { mode, log } = content.options;
    if (!content.histogram && mode !== "line") {
      this.drawPictures(content, size);
      return;
    }
    const library = this.library.get(() => this.draw());
    if (library && content.histogram) {
      this.plot.bars(library, content.histogram, size, log);
    } else if (library) {
      this.drawLine(library, content, size);
    }
  }

  private drawLine(library: UPlot, { options, info, shown }: Content, size: { width: number; height: number }): void {
    const { slice, cells } = shown[0].loaded;
    const start = options.window?.columns[0] ?? 0;
    const step = slice.stride[options.columns] ?? 1;
    const count = slice.reduce === "range" ? cells.values.length / 2 : cells.values.length;
    const x = Float64Array.from({ length: count }, (_, index) => start + index * step);
    const length = info.shape[options.columns] ?? 1;
    this.plot.curves(
      library,
      x,
      shown.map((each) => curveOf(each, count)),
      size,
      (low, high) => this.selected([Math.max(0, Math.floor(low)), Math.min(length, Math.ceil(high) + 1)]),
      (index) => this.pointed(shown[0], 0, 0, index, false),
      options.log,
    );
  }

  private drawPictures(content: Content, size: { width: number; height: number }): void {
    const { options, info, shown } = content;
    const count = this.pictures.length;
    const room = this.drawBars(content, size.height);
    const channels = options.mode === "channels";
    const across = channels ? Math.ceil(Math.sqrt(count)) : count;
    const whole = size.width - room - GAP;
    const width = Math.max(whole / across - GAP, channels ? 0 : Math.min(whole - GAP, SIDE));
    const height = size.height / (channels ? Math.ceil(count / across) : 1) - (count > 1 ? 28 : 6);
    let next = 0;
    for (const each of shown) {
      const { cells, slice } = each.loaded;
      const paint = painter(scaleFor(content, each.part));
      const colored = (cell: number) => paint(cells.values[cell], cells.nonfinite[cell]);
      const pixel = options.mode === "image" && each.part !== "difference" ? imagePixels(cells, options, info.dtype) : colored;
      for (let channel = 0; channel < channelsOf(each, options); channel++) {
        const at = cells.shape.map((_, axis) => (axis === options.channels ? channel : 0));
        const grid = gridOf(cells.shape, options.rows, options.columns, at);
        const rows = { start: options.window?.rows[0] ?? 0, step: slice.stride[options.rows] ?? 1 };
        const columns = { start: options.window?.columns[0] ?? 0, step: slice.stride[options.columns] ?? 1 };
        this.pictures[next++]?.draw({ grid, pixel, nonfinite: cells.nonfinite, rows, columns }, width, height);
      }
    }
    this.showCursor(options.cursor, false);
  }

  /** Draws the color bars.  Returns their width. */
  private drawBars(content: Content, height: number): number {
    const { options, shown } = content;
    const ends = shown.length > 1 ? [shown[0], shown.at(-1) as Shown] : shown;
    const barred = options.mode === "image" ? ends.filter(({ part }) => part === "difference") : ends;
    return this.bars.reduce((room, bar, number) => {
      const of = barred[number];
      bar.hidden = !of;
      return of ? room + GAP + drawBar(bar, scaleFor(content, of.part), Math.min(height - 8, 320)) : room;
    }, 0);
  }
}

/** The channel of the first picture. */
export function firstChannel({ channels, at }: DisplayOptions): number {
  const place = at[channels] ?? 0;
  return place - (place % CHANNELS);
}

function channelsOf({ loaded }: Shown, { mode, channels }: DisplayOptions): number {
  return mode === "channels" ? (loaded.cells.shape[channels] ?? 1) : 1;
}

function curveOf({ part, loaded }: Shown, count: number): Curve {
  const { values, nonfinite } = loaded.cells;
  if (loaded.slice.reduce !== "range") {
    return { name: PART_NAMES[part], values, nonfinite };
  }
  const pick = (offset: number) => Float64Array.from({ length: count }, (_, index) => values[2 * index + offset]);
  return { name: PART_NAMES[part], values: pick(0), high: pick(1), nonfinite };
}

/** The scale of both sides of a comparison; that of a difference is symmetric. */
function scaleFor({ options, shown }: Content, part: Part): Scale {
  const apart = part === "difference";
  const map = apart ? "diverging" : options.map;
  const scales = shown.filter((each) => (each.part === "difference") === apart).map((each) => scaleOf(each.loaded.cells.values, map, options.log));
  const thresholds = scales.flatMap(({ threshold }) => threshold ?? []);
  const log = thresholds.length ? { threshold: Math.min(...thresholds) } : {};
  if (options.range && !apart) {
    return { map, low: options.range[0], high: options.range[1], ...log };
  }
  return { map, low: Math.min(...scales.map(({ low }) => low)), high: Math.max(...scales.map(({ high }) => high)), ...log };
}
