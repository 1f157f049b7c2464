// The mean of a value at each visit as a curve, with a red mark where the value contained NaN or Inf.

import { svgElement } from "../page/elements";
import type { Series } from "./text";

/** The drawing's size, and the space that stays empty around the curve. */
export interface Box {
  width: number;
  height: number;
  edge: number;
}

/** Maps visits and numbers to the coordinates of a box. */
export class Scale {
  readonly low: number;
  readonly high: number;

  constructor(
    private readonly visits: number,
    numbers: readonly number[],
    private readonly box: Box,
  ) {
    this.low = Math.min(...numbers);
    this.high = Math.max(...numbers);
  }

  x(visit: number): number {
    const { width, edge } = this.box;
    return edge + (visit * (width - 2 * edge)) / Math.max(1, this.visits - 1);
  }

  y(number: number): number {
    const { height, edge } = this.box;
    return this.high > this.low ? height - edge - ((number - this.low) * (height - 2 * edge)) / (this.high - this.low) : height / 2;
  }

  /** The visit nearest to a horizontal place, given as a share of the width. */
  visit(share: number): number {
    const { width, edge } = this.box;
    const visit = Math.round(((share * width - edge) * Math.max(1, this.visits - 1)) / (width - 2 * edge));
    return Math.max(0, Math.min(this.visits - 1, visit));
  }
}

/** Known numbers; JSON has no NaN. */
export const known = (numbers: readonly (number | null)[]): number[] => numbers.filter((each) => each !== null);

/** Draws the means of a series. */
export function curve({ mean, nonfinite }: Series, scale: Scale, height: number): SVGElement[] {
  const lines = knownRuns(mean).map((run) => {
    const points = run.map(([visit, number]) => `${scale.x(visit)},${scale.y(number)}`).join(" ");
    return svgElement("polyline", { class: "mean", points });
  });
  const marks = nonfinite.flatMap((count, visit) =>
    count ? [svgElement("line", { class: "bad", x1: scale.x(visit), x2: scale.x(visit), y1: 1, y2: height - 1 })] : [],
  );
  return [...lines, ...marks];
}

/** The runs of known numbers: (visit, number) each. */
function knownRuns(series: readonly (number | null)[]): [number, number][][] {
  const found: [number, number][][] = [];
  series.forEach((number, visit) => {
    if (number === null) {
      return;
    }
    if (visit === 0 || series[visit - 1] === null) {
      found.push([]);
    }
    found[found.length - 1].push([visit, number]);
  });
  return found;
}
