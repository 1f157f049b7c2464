// The layout as SVG.

import { Children } from "../page/children";
import type { Cluster, MapNode } from "./answer";
import { Box, Layout, Line, TITLE } from "./layout";

const SVG = "http://www.w3.org/2000/svg";
const STATES = { done: "done", current: "the current statement", next: "not run yet" };
const CLOSABLE = "▾ ";
const OPENABLE = "▸ ";

export interface Actions {
  open(node: MapNode): void;
  toggle(statement: string, opens: boolean): void;
}

function drawn<Tag extends keyof SVGElementTagNameMap>(
  tag: Tag,
  attributes: Record<string, string | number>,
  ...children: (Node | string)[]
): SVGElementTagNameMap[Tag] {
  const made = document.createElementNS(SVG, tag);
  Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, String(value)));
  made.append(...children);
  return made;
}

/** What belongs to the page's coordinates; zoom and pan are the business of the stage. */
export class Drawing {
  private readonly clusters = new Children<SVGGElement>(drawn("g", {}));
  private readonly lines = new Children<SVGGElement>(drawn("g", {}));
  private readonly nodes = new Children<SVGGElement>(drawn("g", {}));
  readonly root = drawn("g", {}, arrows(), this.clusters.parent, this.lines.parent, this.nodes.parent);

  constructor(private readonly actions: Actions) {}

  show(layout: Layout): void {
    this.clusters.show(layout.clusters, (each) => clusterOf(each, this.actions));
    this.lines.show(layout.lines, lineOf);
    this.nodes.show(layout.nodes, (each) => nodeOf(each, this.actions));
  }
}

function arrows(): SVGDefsElement {
  const arrow = (id: string) =>
    drawn(
      "marker",
      { id, class: id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" },
      drawn("path", { d: "M0 0.5 L8 4 L0 7.5 z" }),
    );
  return drawn("defs", {}, arrow("arrow"), arrow("arrow-bad"));
}

function clusterOf({ of, x, y, width, height }: Box<Cluster>, actions: Actions): SVGGElement {
  const more = [of.before ? `${of.before} before` : "", of.after ? `${of.after} after` : ""].filter((each) => each);
  const title = `${of.node === null ? "" : CLOSABLE}${of.title}${more.length ? `  (${more.join(", ")})` : ""}`;
  const text = fitted(title, width - 12, { x: x + 7, y: y + TITLE - 5 });
  const group = drawn("g", { class: `cluster ${of.kind}` }, drawn("rect", { x, y, width, height, rx: 4 }));
  if (of.node === null) {
    group.append(text);
    return group;
  }
  const words = `${of.title}, shown open. Close it.`;
  const button = drawn("g", { class: "button", role: "button", tabindex: 0, "aria-expanded": "true", "aria-label": words }, text);
  pressed(button, () => actions.toggle(of.node as string, false));
  button.prepend(drawn("rect", { class: "target", x: x + 1, y: y + 1, width: width - 2, height: TITLE }));
  group.append(button);
  return group;
}

function nodeOf({ of, x, y, width, height }: Box<MapNode>, actions: Actions): SVGGElement {
  const opens = of.kind === "layer" || of.kind === "loop" || of.kind === "branch";
  const flag = of.flag ? `, contains ${of.flag === "nan" ? "NaN" : "Inf"}` : "";
  const gives = of.values.length ? `, writes ${of.values.join(", ")}` : "";
  const words = `${of.label}${gives}, line ${of.line}, ${STATES[of.state]}${flag}`;
  const names = `node ${of.kind} ${of.state}${of.flag ? " bad" : ""}`;
  const group = drawn("g", { class: names, role: "button", tabindex: 0, "aria-label": words, "data-id": of.id });
  if (of.state === "current") {
    group.setAttribute("aria-current", "step");
  }
  group.append(drawn("title", {}, opens ? `${words}\nClick the triangle or press the right arrow key to open it.` : words));
  group.append(drawn("rect", { x, y, width, height, rx: of.kind === "op" ? 3 : 10 }));
  const middle = x + width / 2;
  const inner = width - 10 - (opens ? 14 : 0);
  const label = { x: middle + (opens ? 6 : 0), y: y + 17, "text-anchor": "middle", class: "label" };
  group.append(fitted(of.flag ? `${of.label} ⚠` : of.label, inner, label));
  if (of.values.length) {
    group.append(fitted(of.values.join(", "), width - 10, { x: middle, y: y + 31, "text-anchor": "middle", class: "values" }));
  }
  pressed(group, () => actions.open(of));
  if (opens) {
    const arrow = drawn("text", { class: "opens", x: x + 5, y: y + 17, "aria-hidden": "true" }, OPENABLE);
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
  const names = `edge${of.carried ? " carried" : ""}${of.flag ? " bad" : ""}`;
  const words = of.value + (of.carried ? ", carried to the next iteration" : "") + (of.flag ? `, contains ${of.flag === "nan" ? "NaN" : "Inf"}` : "");
  const marker = `url(#${of.flag ? "arrow-bad" : "arrow"})`;
  return drawn("g", { class: names }, drawn("title", {}, words), drawn("path", { d: curve(points), "marker-end": marker }));
}

/** Through the middles between the points, each of which it bends towards. */
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

/** Text that ends in an ellipsis where there is no room for all of it. */
function fitted(text: string, room: number, attributes: Record<string, string | number>): SVGTextElement {
  const most = Math.max(1, Math.floor(room / 6.3));
  return drawn("text", attributes, text.length > most ? `${text.slice(0, most - 1)}…` : text);
}

function pressed(on: SVGElement, action: () => void): void {
  on.addEventListener("click", action);
  on.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      action();
    }
  });
}
