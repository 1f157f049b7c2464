// The large plot of a value over its visits or steps: a click, or Enter, goes to the visit.

import { element, svgElement } from "../page/elements";
import { curve, known, Scale } from "./curve";
import { type Series, short } from "./text";

const BOX = { width: 300, height: 90, edge: 4 };

/** `key` identifies the value from stop to stop; `go` receives the moment of the chosen visit. */
export function plot(name: string, series: Series, key: string, go: (statements: number) => void): HTMLElement {
  const visits = series.mean.length;
  const scale = new Scale(visits, known([...series.min, ...series.max]), BOX);
  const attributes = { viewBox: `0 0 ${BOX.width} ${BOX.height}`, preserveAspectRatio: "none", "aria-hidden": "true" };
  const cursor = svgElement("line", { class: "cursor", y1: 0, y2: BOX.height });
  const svg = svgElement("svg", attributes, range(series, scale), ...curve(series, scale, BOX.height), cursor);
  const readout = element("output", {});
  const area = element("button", { type: "button", className: "area", label: `${name} over ${visits} ${unit(series)}s` });
  area.dataset.key = `plot of ${key}`;
  area.append(svg);
  let chosen = visits - 1;

  function choose(visit: number): void {
    chosen = visit;
    cursor.setAttribute("x1", String(scale.x(visit)));
    cursor.setAttribute("x2", String(scale.x(visit)));
    readout.textContent = visitText(series, visit);
  }

  const share = (event: MouseEvent) => (event.clientX - area.getBoundingClientRect().left) / area.clientWidth;
  area.onpointermove = (event) => choose(scale.visit(share(event)));
  area.onkeydown = (event) => {
    const next = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1 }[event.key];
    if (next !== undefined) {
      choose(Math.max(0, Math.min(visits - 1, next)));
      event.preventDefault();
    }
  };
  area.onclick = () => {
    const statements = series.moments[chosen];
    if (statements !== null) {
      go(statements);
    }
  };
  choose(chosen);
  const edges = Number.isFinite(scale.low) ? `${short(scale.low)} to ${short(scale.high)}` : "no finite number";
  return element("div", { className: "plot" }, area, element("div", { className: "words" }, element("span", {}, edges), readout));
}

const unit = (series: Series): string => (series.steps ? "step" : "visit");

function visitText(series: Series, visit: number): string {
  const number = series.steps ? series.steps[visit] : visit + 1;
  const past = series.moments[visit] === null ? ", no longer in the history" : "";
  const bad = series.nonfinite[visit] ? `, ${series.nonfinite[visit]} NaN or Inf` : "";
  const isOneNumber = series.min[visit] !== null && series.min[visit] === series.max[visit];
  return `${unit(series)} ${number}: ${isOneNumber ? "" : "mean "}${short(series.mean[visit])}${bad}${past}`;
}

/** The area between the least and the greatest number of each visit. */
function range({ min, max }: Series, scale: Scale): SVGElement {
  const visits = [...min.keys()].filter((visit) => min[visit] !== null && max[visit] !== null);
  const upper = visits.map((visit) => `${scale.x(visit)},${scale.y(max[visit] as number)}`);
  const lower = visits.map((visit) => `${scale.x(visit)},${scale.y(min[visit] as number)}`).reverse();
  return svgElement("polygon", { class: "range", points: [...upper, ...lower].join(" ") });
}
