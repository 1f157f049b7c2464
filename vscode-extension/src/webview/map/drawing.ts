// The layout as SVG.

import { Children } from "../page/children";
import { svgElement } from "../page/elements";
import type { Cluster, MapNode } from "./answer";
import { type Box, type Layout, type Line, TITLE } from "./layout";

const STATES = { done: "done", current: "the current statement", next: "not run yet" };
const EXPANDED = "▾ ";
const COLLAPSED = "▸ ";

export interface MapActions {
  open(node: MapNode): void;
  toggle(statement: string, expands: boolean): void;
}

/** The clusters, edges and nodes of a layout. */
export class Drawing {
  private readonly clusters = new Children<SVGGElement>(svgElement("g", {}));
  private readonly lines = new Children<SVGGElement>(svgElement("g", {}));
  private readonly nodes = new Children<SVGGElement>(svgElement("g", {}));
  readonly root = svgElement("g", {}, arrows(), this.clusters.parent, this.lines.parent, this.nodes.parent);

  constructor(private readonly actions: MapActions) {}

  show(layout: Layout): void {
    this.clusters.show(layout.clusters, (each) => clusterOf(each, this.actions));
    this.lines.show(layout.lines, lineOf);
    this.nodes.show(layout.nodes, (each) => nodeOf(each, this.actions));
  }
}

function arrows(): SVGDefsElement {
  const arrow = (id: string) =>
    svgElement(
      "marker",
      { id, class: id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" },
      svgElement("path", { d: "M0 0.5 L8 4 L0 7.5 z" }),
    );
  return svgElement("defs", {}, arrow("arrow"), arrow("arrow-bad"));
}

function clusterOf({ of, x, y, width, height }: Box<Cluster>, actions: MapActions): SVGGElement {
  const more = [of.before ? `${of.before} before` : "", of.after ? `${of.after} after` : ""].filter((each) => each);
  const title = `${of.node === null ? "" : EXPANDED}${of.title}${more.length ? `  (${more.join(", ")})` : ""}`;
  const text = cutText(title, width - 12, { x: x + 7, y: y + TITLE - 5 });
  const group = svgElement("g", { class: `cluster ${of.kind}` }, svgElement("rect", { x, y, width, height, rx: 4 }));
  if (of.node === null) {
    group.append(text);
    return group;
  }
  const label = `${of.title}, shown open. Close it.`;
  const button = svgElement("g", { class: "button", role: "button", tabindex: 0, "aria-expanded": "true", "aria-label": label }, text);
  onPress(button, () => actions.toggle(of.node as string, false));
  button.prepend(svgElement("rect", { class: "target", x: x + 1, y: y + 1, width: width - 2, height: TITLE }));
  group.append(button);
  return group;
}

function nodeOf({ of, x, y, width, height }: Box<MapNode>, actions: MapActions): SVGGElement {
  const expandable = of.kind === "layer" || of.kind === "loop" || of.kind === "branch";
  const flag = of.flag ? `, contains ${of.flag === "nan" ? "NaN" : "Inf"}` : "";
  const results = of.values.length ? `, writes ${of.values.join(", ")}` : "";
  const label = `${of.label}${results}, line ${of.line}, ${STATES[of.state]}${flag}`;
  const classes = `node ${of.kind} ${of.state}${of.flag ? " bad" : ""}`;
  const group = svgElement("g", { class: classes, role: "button", tabindex: 0, "aria-label": label, "data-id": of.id });
  if (of.state === "current") {
    group.setAttribute("aria-current", "step");
  }
  group.append(svgElement("title", {}, expandable ? `${label}\nClick the triangle or press the right arrow key to open it.` : label));
  group.append(svgElement("rect", { x, y, width, height, rx: of.kind === "op" ? 3 : 10 }));
  const middle = x + width / 2;
  const inner = width - 10 - (expandable ? 14 : 0);
  const labelAttributes = { x: middle + (expandable ? 6 : 0), y: y + 17, "text-anchor": "middle", class: "label" };
  group.append(cutText(of.flag ? `${of.label} ⚠` : of.label, inner, labelAttributes));
  if (of.values.length) {
    group.append(cutText(of.values.join(", "), width - 10, { x: middle, y: y + 31, "text-anchor": "middle", class: "values" }));
  }
  onPress(group, () => actions.open(of));
  if (expandable) {
    const arrow = svgElement("text", { class: "opens", x: x + 5, y: y + 17, "aria-hidden": "true" }, COLLAPSED);
    arrow.addEventListener("click", (event) => {
      event.stopPropagation();
      actions.toggle(of.id, true);
    });
    group.append(arrow);
    group.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight") {
        event.preventDefault();
        event.stopPropagation();
        actions.toggle(of.id, true);
      }
    });
  }
  return group;
}

function lineOf({ of, points }: Line): SVGGElement {
  const classes = `edge${of.carried ? " carried" : ""}${of.flag ? " bad" : ""}`;
  const text = of.value + (of.carried ? ", carried to the next iteration" : "") + (of.flag ? `, contains ${of.flag === "nan" ? "NaN" : "Inf"}` : "");
  const marker = `url(#${of.flag ? "arrow-bad" : "arrow"})`;
  return svgElement("g", { class: classes }, svgElement("title", {}, text), svgElement("path", { d: curve(points), "marker-end": marker }));
}

/** A path through the middles between the points, which bends towards each point. */
function curve(points: Line["points"]): string {
  const at = ({ x, y }: { x: number; y: number }) => `${x} ${y}`;
  let path = `M${at(points[0])}`;
  for (let index = 1; index < points.length - 1; index++) {
    const [here, next] = [points[index], points[index + 1]];
    const end = index === points.length - 2 ? next : { x: (here.x + next.x) / 2, y: (here.y + next.y) / 2 };
    path += `Q${at(here)} ${at(end)}`;
  }
  return points.length > 2 ? path : `${path}L${at(points[points.length - 1])}`;
}

/** A text that is cut to a width, in CSS pixels. */
function cutText(text: string, room: number, attributes: Record<string, string | number>): SVGTextElement {
  const most = Math.max(1, Math.floor(room / 6.3));
  return svgElement("text", attributes, text.length > most ? `${text.slice(0, most - 1)}…` : text);
}

function onPress(on: SVGElement, action: () => void): void {
  on.addEventListener("click", action);
  on.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      action();
    }
  });
}
