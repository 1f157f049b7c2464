// The curve of a value beside its row.

import { svgElement } from "../page/elements";
import { curve, known, Scale } from "./curve";
import { type Series, short } from "./text";

const BOX = { width: 64, height: 20, edge: 3 };

export function sparkline(series: Series): SVGElement {
  const { mean, nonfinite } = series;
  const numbers = known(mean);
  const bad = nonfinite.filter((each) => each).length;
  const text =
    `mean over ${mean.length} ${series.steps ? "steps" : "visits"}: ` +
    (numbers.length ? `${short(numbers[0])} to ${short(numbers[numbers.length - 1])}` : "none") +
    (bad ? `, ${bad} with NaN or Inf` : "");
  const attributes = { class: "spark", viewBox: `0 0 ${BOX.width} ${BOX.height}`, role: "img", "aria-label": text };
  const svg = svgElement("svg", attributes, svgElement("title", {}, text));
  const scale = new Scale(mean.length, numbers, BOX);
  svg.append(...curve(series, scale, BOX.height));
  const last = mean[mean.length - 1];
  if (last !== null) {
    svg.append(svgElement("circle", { class: "now", cx: scale.x(mean.length - 1), cy: scale.y(last), r: 2 }));
  }
  return svg;
}
