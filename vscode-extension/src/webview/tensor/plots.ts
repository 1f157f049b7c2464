// Curves and histograms, drawn by uPlot in the colors of the theme.

import type uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Histogram } from "../../tensor/messages";
import { nonfiniteStyle, thresholdOf } from "../color/colors";
import { element, themed } from "../page/elements";
import type { UPlot } from "./plotLibrary";
import { aroundConstant, numberText, rounded } from "../page/numbers";

export interface Curve {
  name: string;
  /** One value for each x; with `high`, the least and the greatest of a block. */
  values: ArrayLike<number>;
  high?: ArrayLike<number>;
  nonfinite: Uint8Array;
}

const COLORS = ["charts-blue", "charts-orange", "charts-green"];
const FALLBACK = ["#3794ff", "#d18616", "#89d185"];

export class PlotView {
  readonly root = element("div", { className: "plot" });
  private plot: uPlot | undefined;

  get drawn(): HTMLCanvasElement | undefined {
    return this.plot?.ctx.canvas;
  }

  clear(): void {
    this.plot?.destroy();
    this.plot = undefined;
    this.root.replaceChildren();
  }

  /** `selected` receives both ends of a selected range, `pointed` the index of the x at the pointer. */
  curves(
    library: UPlot,
    x: ArrayLike<number>,
    curves: readonly Curve[],
    size: { width: number; height: number },
    selected: (low: number, high: number) => void,
    pointed: (index: number) => void,
    log: boolean,
  ): void {
    this.clear();
    const value = (_: uPlot, each: number | null) => (each === null ? "–" : numberText(each));
    const series: uPlot.Series[] = [{ label: "index" }];
    const bands: uPlot.Band[] = [];
    const data: number[][] = [Array.from(x)];
    curves.forEach(({ name, values, high }, number) => {
      const stroke = themed(COLORS[number], FALLBACK[number]);
      data.push(Array.from(values));
      series.push({ label: high ? `${name}, smallest` : name, value, stroke, width: 1.5, points: { show: x.length <= 64 } });
      if (high) {
        data.push(Array.from(high));
        series.push({ label: `${name}, largest`, value, stroke, width: 1.5, points: { show: false } });
        bands.push({ series: [series.length - 1, series.length - 2], fill: faded(stroke) });
      }
    });
    const finite = data.map((each, number) => (number ? each.map((value) => (Number.isFinite(value) ? value : null)) : each));
    const options: uPlot.Options = {
      ...frame(size),
      series,
      bands,
      scales: { x: { time: false }, y: verticalScale(library, log ? thresholdOf(curves.flatMap(({ values, high }) => [...Array.from(values), ...Array.from(high ?? [])])) : undefined) },
      cursor: { drag: { x: true, y: false, setScale: false } },
      hooks: {
        draw: [(plot) => markNonfinite(plot, x, curves)],
        setSelect: [
          (plot) => {
            if (plot.select.width > 4) {
              selected(plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x"));
            }
          },
        ],
        setCursor: [(plot) => typeof plot.cursor.idx === "number" && pointed(plot.cursor.idx)],
      },
    };
    this.plot = new library(options, finite as uPlot.AlignedData, this.root);
  }

  bars(library: UPlot, { edges, counts }: Histogram, size: { width: number; height: number }, log: boolean): void {
    this.clear();
    const stroke = themed("charts-blue", "#3794ff");
    const width = edges[1] - edges[0];
    const middles = counts.map((_, bin) => edges[bin] + width / 2);
    const bars = library.paths.bars?.({ size: [1, Infinity], gap: 1 });
    const options: uPlot.Options = {
      ...frame(size),
      series: [
        { label: "about", value: (_, value) => rounded(value) },
        { label: "elements", stroke, fill: faded(stroke), width: 1, paths: bars, points: { show: false } },
      ],
      scales: { x: { time: false }, y: { ...(log ? { distr: 4, asinh: 1 } : {}), range: (_, __, most) => [0, Math.max(1, most) * 1.05] } },
      cursor: { drag: { x: false, y: false } },
    };
    this.plot = new library(options, [middles, counts], this.root);
  }
}

/** The scale of a curve: with room around a constant, and logarithmic above `threshold`. */
function verticalScale(library: UPlot, threshold: number | undefined): uPlot.Scale {
  const range: uPlot.Scale["range"] = (_, low, high) =>
    aroundConstant(low, high) ?? (threshold === undefined ? library.rangeNum(low, high, 0.1, true) : [low, high]);
  return threshold === undefined ? { range } : { range, distr: 4, asinh: threshold };
}

function frame({ width, height }: { width: number; height: number }): Pick<uPlot.Options, "width" | "height" | "axes" | "legend"> {
  const stroke = themed("foreground", "#888");
  const grid = { stroke: faded(themed("descriptionForeground", "#888888")), width: 1 };
  const font = `11px ${themed("font-family", "sans-serif")}`;
  const axis = { stroke, grid, ticks: grid, font };
  const values = (_: uPlot, splits: number[]) => splits.map(rounded);
  return { width: Math.max(200, width), height: Math.max(120, height - 32), axes: [axis, { ...axis, size: 72, values }] };
}

function faded(color: string): string {
  const context = element("canvas").getContext("2d") as CanvasRenderingContext2D;
  context.fillStyle = color;
  return /^#[\da-f]{6}$/.test(context.fillStyle) ? `${context.fillStyle}40` : color;
}

/** Draws stripes over the whole height at NaN and Inf. */
function markNonfinite(plot: uPlot, x: ArrayLike<number>, curves: readonly Curve[]): void {
  const { ctx, bbox } = plot;
  const width = Math.max(2 * devicePixelRatio, bbox.width / Math.max(1, x.length) / 2);
  ctx.save();
  for (const { nonfinite } of curves) {
    for (let i = 0; i < nonfinite.length; i++) {
      const style = nonfiniteStyle(nonfinite[i]);
      const place = style ? plot.valToPos(x[i], "x", true) : -1;
      if (style && place >= bbox.left && place <= bbox.left + bbox.width) {
        ctx.fillStyle = `${style.color}b0`;
        ctx.fillRect(place - width / 2, bbox.top, width, bbox.height);
      }
    }
  }
  ctx.restore();
}
