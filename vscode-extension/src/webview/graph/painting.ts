// Draws what is in view of a graph on a canvas.

import type { GraphNode, State } from "../../graph/messages";
import { themed } from "../page/elements";
import type { Point } from "./pieces";
import type { Placing } from "./placing";
import { TITLE } from "./placing";

export interface Looks {
  state: State | undefined;
  /** The statement that is lit, and the one that is chosen; -1 for none. */
  current: number;
  chosen: number;
  pointed: number;
  breakpoints: ReadonlySet<number>;
  found: ReadonlySet<number>;
  /** The color of a statement by its statistic, if one is shown. */
  color(node: GraphNode): string | undefined;
  done(node: number): boolean;
}

/** Units below which text cannot be read, and is left out. */
const READABLE = 0.45;
const RADIUS = 4;

export function paint(canvas: HTMLCanvasElement, placing: Placing, looks: Looks, zoom: number, origin: Point): void {
  const context = canvas.getContext("2d");
  if (!context) {
    return;
  }
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.width / ratio / zoom, canvas.height / ratio / zoom];
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.setTransform(ratio * zoom, 0, 0, ratio * zoom, -origin.x * ratio * zoom, -origin.y * ratio * zoom);
  const colors = (known ??= palette());
  // What is far away keeps lines of a pixel.
  const thin = Math.max(1, 0.8 / zoom);
  const view = { top: origin.y, bottom: origin.y + height, left: origin.x, right: origin.x + width };
  paintFrames(context, placing, colors, view, zoom);
  const seen = placing.between(view.top, view.bottom);
  seen.forEach((chunk) => paintLines(context, placing, looks, chunk, colors, zoom, thin));
  paintBack(context, placing, seen, colors);
  seen.forEach((chunk) => paintNodes(context, placing, looks, chunk, colors, zoom, thin));
}

type Colors = ReturnType<typeof palette>;

let known: Colors | undefined;

/** The theme has changed. */
export function forgetColors(): void {
  known = undefined;
}

function palette() {
  const line = themed("descriptionForeground", "#888");
  return {
    line,
    text: themed("foreground", "#ccc"),
    dim: line,
    node: themed("editorWidget-background", themed("editor-background", "#222")),
    bad: themed("errorForeground", "#f44"),
    focus: themed("focusBorder", "#07f"),
    lit: themed("editor-stackFrameHighlightBackground", "#ffff0033"),
    current: themed("debugIcon-breakpointCurrentStackframeForeground", "#fc0"),
    breakpoint: themed("debugIcon-breakpointForeground", "#e51400"),
    found: themed("editor-findMatchHighlightBackground", "#ea5c0055"),
    background: themed("editor-background", "#1e1e1e"),
    font: themed("editor-font-family", "monospace"),
  };
}

interface Box {
  top: number;
  bottom: number;
  left: number;
  right: number;
}

function paintFrames(context: CanvasRenderingContext2D, placing: Placing, colors: Colors, view: Box, zoom: number): void {
  for (const { of, x, y, width, height } of placing.frames) {
    if (of.node === null || y > view.bottom || y + height < view.top) {
      continue;
    }
    context.strokeStyle = colors.line;
    context.lineWidth = 1;
    context.setLineDash(of.kind === "loop" ? [5, 3] : []);
    context.globalAlpha = 0.06;
    context.fillStyle = colors.text;
    context.fillRect(x, y, width, height);
    context.globalAlpha = 0.7;
    context.strokeRect(x, y, width, height);
    context.globalAlpha = 1;
    context.setLineDash([]);
    if (zoom >= READABLE) {
      context.font = `600 12px ${colors.font}`;
      context.fillStyle = colors.text;
      context.textAlign = "left";
      // In a tall frame the title stays in view.
      context.fillText(`▾ ${of.title}`, x + 6, Math.min(y + height - 6, Math.max(y + TITLE - 7, view.top + 14)));
    }
  }
}

function paintLines(context: CanvasRenderingContext2D, placing: Placing, looks: Looks, chunk: number, colors: Colors, zoom: number, thin: number): void {
  const laid = placing.layoutOf(chunk);
  if (!laid) {
    return;
  }
  const { of } = placing.cut.chunks[chunk];
  const corner = placing.corners[chunk];
  const flags = looks.state?.flags ?? {};
  const labeled = new Set<number>();
  laid.lines.forEach((points, index) => {
    const [from] = of[index];
    const node = placing.graph.nodes[from];
    const bad = flags[node.id] !== undefined;
    context.strokeStyle = bad ? colors.bad : colors.line;
    context.lineWidth = bad ? 2 * thin : thin;
    const moved = points.map(({ x, y }) => ({ x: x + corner.x, y: y + corner.y }));
    curve(context, moved);
    if (zoom > READABLE && placing.cut.chunkOf[from] === chunk && node.type && !labeled.has(from)) {
      labeled.add(from);
      const start = moved[0];
      context.fillStyle = colors.dim;
      context.font = `10px ${colors.font}`;
      context.textAlign = "left";
      context.fillText(shapeOf(node.type), start.x + 4, start.y + 12);
    }
  });
  const above = placing.layoutOf(chunk - 1);
  const before = placing.corners[chunk - 1];
  for (const [port, place] of Object.entries(laid.enter)) {
    const leaves = above?.leave[Number(port)];
    if (leaves && before) {
      context.strokeStyle = flags[placing.graph.nodes[Number(port)].id] ? colors.bad : colors.line;
      context.lineWidth = thin;
      const [a, b] = [{ x: leaves.x + before.x, y: leaves.y + before.y }, { x: place.x + corner.x, y: place.y + corner.y }];
      context.beginPath();
      context.moveTo(a.x, a.y);
      context.bezierCurveTo(a.x, (a.y + b.y) / 2, b.x, (a.y + b.y) / 2, b.x, b.y);
      context.stroke();
    }
  }
}

/** Through the middles between the points, and an arrow at the end. */
function curve(context: CanvasRenderingContext2D, points: readonly Point[]): void {
  const last = points[points.length - 1];
  const before = points[points.length - 2];
  if (!last || !before) {
    return;
  }
  context.beginPath();
  context.moveTo(points[0].x, points[0].y);
  for (let index = 1; index < points.length - 1; index++) {
    const [here, next] = [points[index], points[index + 1]];
    const end = index === points.length - 2 ? next : { x: (here.x + next.x) / 2, y: (here.y + next.y) / 2 };
    context.quadraticCurveTo(here.x, here.y, end.x, end.y);
  }
  context.lineTo(last.x, last.y);
  context.stroke();
  const angle = Math.atan2(last.y - before.y, last.x - before.x);
  context.fillStyle = context.strokeStyle;
  context.beginPath();
  context.moveTo(last.x, last.y);
  context.lineTo(last.x - 6 * Math.cos(angle - 0.45), last.y - 6 * Math.sin(angle - 0.45));
  context.lineTo(last.x - 6 * Math.cos(angle + 0.45), last.y - 6 * Math.sin(angle + 0.45));
  context.fill();
}

/** To the next iteration: dashed, along the right side. */
function paintBack(context: CanvasRenderingContext2D, placing: Placing, seen: readonly number[], colors: Colors): void {
  const { chunkOf, back } = placing.cut;
  const [first, last] = [seen[0] ?? 0, seen.at(-1) ?? -1];
  context.setLineDash([4, 3]);
  context.strokeStyle = colors.line;
  context.lineWidth = 1;
  for (const [from, to] of back) {
    if (chunkOf[to] > last || chunkOf[from] < first) {
      continue;
    }
    const [a, b] = [placing.middleOf(from), placing.middleOf(to)];
    const [start, end] = [a.x + placing.sizeOf(from)[0] / 2, b.x + placing.sizeOf(to)[0] / 2];
    const out = Math.max(start, end) + 40;
    context.beginPath();
    context.moveTo(start, a.y);
    context.bezierCurveTo(out, a.y, out, b.y, end, b.y);
    context.stroke();
  }
  context.setLineDash([]);
}

function paintNodes(context: CanvasRenderingContext2D, placing: Placing, looks: Looks, chunk: number, colors: Colors, zoom: number, thin: number): void {
  if (!placing.layoutOf(chunk)) {
    const corner = placing.corners[chunk];
    context.fillStyle = colors.dim;
    context.font = `12px ${colors.font}`;
    context.textAlign = "left";
    context.fillText("…", corner.x + 80, corner.y + 30);
    return;
  }
  const { first, end } = placing.cut.chunks[chunk];
  for (let node = first; node < end; node++) {
    paintNode(context, placing, looks, node, colors, zoom, thin);
  }
}

function paintNode(context: CanvasRenderingContext2D, placing: Placing, looks: Looks, index: number, colors: Colors, zoom: number, thin: number): void {
  const node = placing.graph.nodes[index];
  const [width, height] = placing.sizeOf(index);
  const { x, y } = placing.middleOf(index);
  const [left, top] = [x - width / 2, y - height / 2];
  const bad = looks.state?.flags[node.id] !== undefined;
  const fill = looks.color(node);
  context.beginPath();
  context.roundRect(left, top, width, height, node.kind === "op" ? RADIUS : 12);
  context.fillStyle = colors.background;
  context.fill();
  context.fillStyle = fill ?? (index === looks.current ? (zoom < READABLE ? colors.current : colors.lit) : zoom < READABLE && bad ? colors.bad : colors.node);
  context.fill();
  if (looks.found.has(index)) {
    context.fillStyle = colors.found;
    context.fill();
  }
  const done = looks.done(index);
  context.setLineDash(done || index === looks.current ? [] : [3, 2]);
  context.lineWidth = thin * (index === looks.current ? 3 : bad || index === looks.chosen || index === looks.pointed ? 2 : 1);
  context.strokeStyle = index === looks.current ? colors.current : bad ? colors.bad : index === looks.chosen || index === looks.pointed ? colors.focus : colors.line;
  context.stroke();
  context.setLineDash([]);
  const set = looks.breakpoints.has(node.line);
  if (set || index === looks.pointed) {
    context.globalAlpha = set ? 1 : 0.4;
    context.fillStyle = colors.breakpoint;
    context.beginPath();
    context.arc(left + 9, y, 4.5, 0, 2 * Math.PI);
    context.fill();
    context.globalAlpha = 1;
  }
  if (zoom < READABLE) {
    return;
  }
  const dark = fill && darkness(fill);
  context.textAlign = "center";
  context.fillStyle = fill ? (dark ? "#fff" : "#000") : bad ? colors.bad : done || index === looks.current ? colors.text : colors.dim;
  context.font = `${index === looks.current ? "700" : "500"} 12px ${colors.font}`;
  const opens = node.kind === "op" || node.kind === "end" ? "" : "▸ ";
  const name = node.values.join(", ");
  context.fillText(`${opens}${node.label}${bad ? " ⚠" : ""}`, x + 5, name ? y - 4 : y + 4, width - 24);
  if (name) {
    context.fillStyle = fill ? (dark ? "#fff" : "#000") : index === looks.current ? colors.text : colors.dim;
    context.font = `10.5px ${colors.font}`;
    context.fillText(cutLeft(name, Math.floor((width - 26) / 6.3)), x + 5, y + 12);
  }
}

function darkness(color: string): boolean {
  const [red, green, blue] = color.match(/\d+/g)!.map(Number) as [number, number, number];
  return 0.299 * red + 0.587 * green + 0.114 * blue < 140;
}

/** `[1,64]` of `f32[1,64]`, with the element type where there is no shape. */
function shapeOf(type: string): string {
  return cutLeft(type, 24);
}

function cutLeft(text: string, most: number): string {
  return text.length > most ? `…${text.slice(text.length - Math.max(1, most - 1))}` : text;
}
