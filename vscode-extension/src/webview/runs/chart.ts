// The chart of one tracked name, drawn by uPlot: a curve for each run and part, with marks at forks, NaN and Inf.

import type uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { element, themed } from "../page/elements";
import { aroundConstant } from "../page/numbers";
import { short } from "../statistics/text";
import type { Curve, Plot } from "./curves";
import { drawBranch, drawNonfinite, MARK } from "./marks";
import { colorOf } from "./runColors";
import { nearestIndex, thinned } from "./thinning";
import { logarithmicTicks } from "./ticks";

/** The global of uPlot's file, which runs before the page. */
declare const uplot: { default: typeof uPlot };

const HEIGHT = 220;
/** Curves with fewer visible points have a dot at each; test parts always have. */
const FEW = 48;
/** The room above and below the curves of a logarithmic scale, as a factor. */
const ROOM = 1.1;
const TEST_DASH = [6, 4];

/** A point of a chart: a curve, and the index of a step. */
export interface Place {
  curve: Curve;
  index: number;
}

export interface ChartOptions {
  range: [number, number];
  log: boolean;
  width: number;
}

export interface ChartHandlers {
  /** The place at the pointer, or of the keys, has changed. */
  pointed(place: Place | undefined): void;
  /** A click, or Enter. */
  opened(place: Place): void;
  selected(low: number, high: number): void;
}

/** Pixels that the pointer moves in a click at most. */
const CLICK = 4;
/** For a screen reader; the value at the place is an `output` above the chart. */
const KEYS = "Left and right arrow, Home and End: along the curve. Up and down arrow: other curves. Enter: debug the step.";
/** Points that an arrow key moves with Shift. */
const PAGE = 20;

export class Chart {
  readonly root = element("div", { className: "canvas" });
  private readonly marker = element("span", { className: "marker", hidden: true });
  private plot: uPlot | undefined;
  private shown: Plot = { name: "", curves: [] };
  private current: Place | undefined;
  private pressedAt = 0;

  constructor(private readonly handlers: ChartHandlers) {
    this.root.tabIndex = 0;
    this.root.setAttribute("role", "application");
    this.root.onpointerdown = ({ clientX }) => (this.pressedAt = clientX);
    this.root.onclick = ({ clientX }) => {
      if (this.current && Math.abs(clientX - this.pressedAt) <= CLICK) {
        this.handlers.opened(this.current);
      }
    };
    this.root.onkeydown = (event) => this.press(event);
  }

  private press(event: KeyboardEvent): void {
    const curve = this.current?.curve ?? this.shown.curves[0];
    if (event.key === "Enter" && this.current) {
      this.handlers.opened(this.current);
    } else if (curve) {
      const next = moved(event, { curve, index: this.current?.index ?? curve.steps.length }, this.shown.curves);
      if (next) {
        this.handlers.pointed((this.current = next));
        event.preventDefault();
      }
    }
  }

  /** Returns whether the scale is the chosen one: a logarithmic scale needs positive values. */
  draw(shown: Plot, { range, log, width }: ChartOptions): boolean {
    this.plot?.destroy();
    this.shown = shown;
    const columns = Math.max(1, Math.round(width * devicePixelRatio));
    const points = shown.curves.map(({ steps, values }) => thinned(steps, values, ...range, columns));
    const finite = points.flatMap(({ y }) => y).filter((each) => each !== null);
    const logarithmic = log ? logarithmicScale(finite) : undefined;
    const few = points.every(({ x }) => x.length <= FEW);
    const data = uplot.default.join(points.map(({ x, y }) => [x, y] as uPlot.AlignedData));
    const options: uPlot.Options = {
      ...frame(width, logarithmic !== undefined),
      legend: { show: false },
      series: [{}, ...shown.curves.map((curve) => seriesOf(curve, few))],
      scales: { x: { time: false, range }, y: logarithmic ?? LINEAR },
      cursor: {
        points: { show: false },
        drag: { x: true, y: false, setScale: false },
        bind: { dblclick: () => null },
      },
      hooks: {
        draw: [(plot) => this.drawMarks(plot)],
        setCursor: [(plot) => this.point(plot)],
        setSelect: [
          (plot) => {
            const { left, width: selected } = plot.select;
            if (selected > CLICK) {
              this.handlers.selected(plot.posToVal(left, "x"), plot.posToVal(left + selected, "x"));
            }
          },
        ],
      },
    };
    this.plot = new uplot.default(options, data, this.root);
    this.plot.over.append(this.marker);
    this.root.setAttribute("aria-label", `${shown.name} over the steps. ${KEYS}`);
    this.mark(undefined);
    return log === (logarithmic !== undefined);
  }

  /** Marks a place; undefined removes the mark. */
  mark(place: Place | undefined): void {
    const { plot, marker } = this;
    this.current = place;
    marker.hidden = !place;
    if (place && plot) {
      const { x, y } = this.pixelOf(plot, place);
      marker.style.left = `${x}px`;
      marker.style.top = `${y}px`;
      marker.style.borderColor = colorOf(place.curve.run.number);
    }
  }

  /** A place of NaN is at the upper edge. */
  private pixelOf(plot: uPlot, { curve, index }: Place): { x: number; y: number } {
    const value = curve.values[index];
    return { x: plot.valToPos(curve.steps[index], "x"), y: Number.isFinite(value) ? plot.valToPos(value, "y") : MARK / 2 };
  }

  private point(plot: uPlot): void {
    const { left = -1, top = -1, event } = plot.cursor;
    // A new plot has a cursor outside, which the pointer did not move there.
    if (!event) {
      return;
    }
    this.current = left < 0 ? undefined : this.nearest(plot, left, top);
    this.handlers.pointed(this.current);
  }

  /** The nearest place to a pixel: of each curve, the nearest step. */
  private nearest(plot: uPlot, left: number, top: number): Place | undefined {
    const step = plot.posToVal(left, "x");
    const distance = (place: Place) => {
      const { x, y } = this.pixelOf(plot, place);
      return Math.hypot(x - left, y - top);
    };
    const places = this.shown.curves.map((curve) => ({ curve, index: nearestIndex(curve.steps, step) }));
    return places.reduce<Place | undefined>((best, each) => (best && distance(best) <= distance(each) ? best : each), undefined);
  }

  private drawMarks(plot: uPlot): void {
    const { ctx } = plot;
    ctx.save();
    for (const curve of this.shown.curves) {
      drawNonfinite(plot, curve);
      if (curve.branch !== undefined) {
        drawBranch(plot, curve, curve.branch);
      }
    }
    ctx.restore();
  }

  dispose(): void {
    this.plot?.destroy();
    this.plot = undefined;
  }
}

/** The place that a key leads to: left, right, Home and End along the curve, up and down to another curve. */
function moved({ key, shiftKey }: KeyboardEvent, { curve, index }: Place, curves: readonly Curve[]): Place | undefined {
  const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[key];
  const other = { ArrowUp: -1, ArrowDown: 1 }[key];
  if (by !== undefined) {
    const last = curve.steps.length - 1;
    return { curve, index: Math.max(0, Math.min(last, index + by * (shiftKey ? PAGE : 1))) };
  }
  if (other !== undefined) {
    const step = curve.steps[Math.min(index, curve.steps.length - 1)];
    const next = curves[(curves.indexOf(curve) + other + curves.length) % curves.length];
    return { curve: next, index: nearestIndex(next.steps, step) };
  }
  return undefined;
}

function seriesOf({ run, part }: Curve, dots: boolean): uPlot.Series {
  const stroke = colorOf(run.number);
  return { stroke, width: 1.5, dash: part === "test" ? TEST_DASH : undefined, points: { show: dots || part === "test", size: 5, fill: stroke } };
}

/** A logarithmic scale, or undefined if a number is not positive. */
function logarithmicScale(values: readonly number[]): uPlot.Scale | undefined {
  const range: uPlot.Scale["range"] = (_, low, high) => (low === null || low === high ? [(low ?? 1) / 10, (low ?? 1) * 10] : [low / ROOM, high * ROOM]);
  return values.every((each) => each > 0) ? { range, distr: 3 } : undefined;
}

const LINEAR: uPlot.Scale = { range: (_, low, high) => aroundConstant(low, high) ?? uplot.default.rangeNum(low, high, 0.08, true) };

function frame(width: number, logarithmic: boolean): Pick<uPlot.Options, "width" | "height" | "axes"> {
  const stroke = themed("foreground", "#888");
  const grid = { stroke: themed("editorIndentGuide-background1", "#88888840"), width: 1 };
  const axis = { stroke, grid, ticks: grid, font: `11px ${themed("font-family", "sans-serif")}` };
  const values = (_: uPlot, splits: number[]) => splits.map(short);
  const ticks: Partial<uPlot.Axis> = logarithmic ? { splits: (_, __, low, high) => logarithmicTicks(low, high), filter: (_, splits) => splits } : {};
  const whole = (_: uPlot, splits: number[]) => splits.map((each) => (Number.isInteger(each) ? String(each) : ""));
  return { width, height: HEIGHT, axes: [{ ...axis, values: whole, size: 28 }, { ...axis, ...ticks, size: 60, values }] };
}
