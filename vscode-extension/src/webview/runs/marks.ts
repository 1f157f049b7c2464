// Marks in a chart: NaN and Inf at the upper edge, and rings at forks, in colors of the theme.

import type uPlot from "uplot";
import { themed } from "../page/elements";
import type { Curve } from "./curves";
import { colorOf } from "./runColors";
import { type Mark, marked } from "./thinning";

/** Pixels of the marks at the upper edge. */
export const MARK = 7;

/** As the names of NaN below the chart; Inf as a warning. */
function markColor({ nan }: Mark): string {
  return nan ? themed("errorForeground", "#f14c4c") : themed("editorWarning-foreground", "#cca700");
}

/** Draws a mark for each column of pixels with NaN or Inf, and a line at the first value. */
export function drawNonfinite(plot: uPlot, curve: Curve): void {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const [low, high] = [plot.posToVal(bbox.left, "x", true), plot.posToVal(bbox.left + bbox.width, "x", true)];
  for (const mark of marked(curve, low, high, bbox.width)) {
    const x = plot.valToPos(mark.step, "x", true);
    ctx.fillStyle = ctx.strokeStyle = markColor(mark);
    ctx.fillRect(x - ratio, bbox.top, 2 * ratio, MARK * ratio);
    if (mark.step === curve.steps[curve.nonfinite[0]]) {
      ctx.lineWidth = ratio;
      ctx.setLineDash([3 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.setLineDash([]);
    }
  }
}

/** Draws a ring where a fork leaves its parent. */
export function drawBranch(plot: uPlot, { run, steps, values }: Curve, index: number): void {
  const { ctx, bbox } = plot;
  const [x, y] = [plot.valToPos(steps[index], "x", true), plot.valToPos(values[index], "y", true)];
  if (x >= bbox.left && x <= bbox.left + bbox.width && Number.isFinite(y)) {
    ctx.strokeStyle = colorOf(run.number);
    ctx.lineWidth = 2 * devicePixelRatio;
    ctx.beginPath();
    ctx.arc(x, y, 4.5 * devicePixelRatio, 0, 2 * Math.PI);
    ctx.stroke();
  }
}
