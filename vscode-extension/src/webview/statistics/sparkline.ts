// The mean of a value at each iteration, with a red mark where the value contained NaN or Inf.

import { svgElement } from "../page/elements";
import { type Series, short } from "./text";

const WIDTH = 64;
const HEIGHT = 20;
const EDGE = 3;

export function sparkline({ mean, nonfinite }: Series): SVGElement {
  const known = mean.filter((each) => each !== null);
  const bad = nonfinite.filter((each) => each).length;
  const text =
    `mean over ${mean.length} visits: ` +
    (known.length ? `${short(known[0])} to ${short(known[known.length - 1])}` : "none") +
    (bad ? `, ${bad} with NaN or Inf` : "");
  const attributes = { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": text };
  const svg = svgElement("svg", attributes, svgElement("title", {}, text));
  const low = Math.min(...known);
  const high = Math.max(...known);
  const x = (index: number) => EDGE + (index * (WIDTH - 2 * EDGE)) / Math.max(1, mean.length - 1);
  const y = (number: number) =>
    high > low ? HEIGHT - EDGE - ((number - low) * (HEIGHT - 2 * EDGE)) / (high - low) : HEIGHT / 2;
  for (const run of knownRuns(mean)) {
    const points = run.map(([index, number]) => `${x(index)},${y(number)}`).join(" ");
    svg.append(svgElement("polyline", { class: "mean", points }));
  }
  nonfinite.forEach((count, index) => {
    if (count) {
      svg.append(svgElement("line", { class: "bad", x1: x(index), x2: x(index), y1: 1, y2: HEIGHT - 1 }));
    }
  });
  const last = mean[mean.length - 1];
  if (last !== null) {
    svg.append(svgElement("circle", { class: "now", cx: x(mean.length - 1), cy: y(last), r: 2 }));
  }
  return svg;
}

/** The runs of known numbers: (index, number) each. */
function knownRuns(series: (number | null)[]): [number, number][][] {
  const found: [number, number][][] = [];
  series.forEach((number, index) => {
    if (number === null) {
      return;
    }
    if (index === 0 || series[index - 1] === null) {
      found.push([]);
    }
    found[found.length - 1].push([index, number]);
  });
  return found;
}
