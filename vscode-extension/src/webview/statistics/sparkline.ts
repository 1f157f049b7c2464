// The mean of a value from iteration to iteration; a red mark where it held NaN or Inf.

import { Series, short } from "./words";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 64;
const HEIGHT = 20;
const EDGE = 3;

function drawn(tag: string, attributes: Record<string, string | number>): SVGElement {
  const made = document.createElementNS(SVG, tag);
  Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, String(value)));
  return made;
}

export function sparkline({ mean, nonfinite }: Series): SVGElement {
  const known = mean.filter((each) => each !== null);
  const bad = nonfinite.filter((each) => each).length;
  const words =
    `mean over ${mean.length} visits: ` +
    (known.length ? `${short(known[0])} to ${short(known[known.length - 1])}` : "none") +
    (bad ? `, ${bad} with NaN or Inf` : "");
  const svg = drawn("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words });
  const title = drawn("title", {});
  title.textContent = words;
  svg.append(title);
  const low = Math.min(...known);
  const high = Math.max(...known);
  const x = (index: number) => EDGE + (index * (WIDTH - 2 * EDGE)) / Math.max(1, mean.length - 1);
  const y = (number: number) =>
    high > low ? HEIGHT - EDGE - ((number - low) * (HEIGHT - 2 * EDGE)) / (high - low) : HEIGHT / 2;
  for (const stretch of stretches(mean)) {
    const points = stretch.map(([index, number]) => `${x(index)},${y(number)}`).join(" ");
    svg.append(drawn("polyline", { class: "mean", points }));
  }
  nonfinite.forEach((count, index) => {
    if (count) {
      svg.append(drawn("line", { class: "bad", x1: x(index), x2: x(index), y1: 1, y2: HEIGHT - 1 }));
    }
  });
  const last = mean[mean.length - 1];
  if (last !== null) {
    svg.append(drawn("circle", { class: "now", cx: x(mean.length - 1), cy: y(last), r: 2 }));
  }
  return svg;
}

/** What is known in a row: (index, number) each. */
function stretches(series: (number | null)[]): [number, number][][] {
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
