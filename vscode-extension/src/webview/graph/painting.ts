// Draws the visible part of a graph on a canvas.

import type { GraphEdge, GraphNode, GraphState } from "../../graph/messages";
import { themed } from "../page/elements";
import type { Point } from "./chunks";
import { type GraphLayout, TITLE } from "./graphLayout";
import type { Viewport } from "./viewport";

export interface Appearance {
  state: GraphState | undefined;
  /** Indices of statements; -1 for none. */
  current: number;
  selected: number;
  pointed: number;
  breakpoints: ReadonlySet<number>;
  found: ReadonlySet<number>;
  /** The color of a statement by its statistic, if one is shown. */
  color(node: GraphNode): string | undefined;
  executed(node: number): boolean;
  /** Whether a result of a statement, or of one inside, is NaN or Inf. */
  flagged(node: GraphNode): boolean;
}

/** The zoom below which text is not readable, and not drawn. */
export const READABLE = 0.45;
const RADIUS = 4;
const MOST_TYPE_LETTERS = 24;

export function paint(canvas: HTMLCanvasElement, layout: GraphLayout, appearance: Appearance, { zoom, origin }: Viewport): void {
  const context = canvas.getContext("2d");
  if (!context) {
    return;
  }
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.width / ratio / zoom, canvas.height / ratio / zoom];
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.setTransform(ratio * zoom, 0, 0, ratio * zoom, -origin.x * ratio * zoom, -origin.y * ratio * zoom);
  const colors = (themeColors ??= readColors());
  // Lines keep their width on the screen.
  const thin = Math.max(1, 0.8 / zoom);
  const painting = { context, layout, appearance, colors, zoom, thin };
  const view = { top: origin.y, bottom: origin.y + height, left: origin.x, right: origin.x + width };
  paintFrames(painting, view);
  const visible = layout.between(view.top, view.bottom);
  visible.forEach((chunk) => paintLines(painting, chunk));
  paintBackEdges(painting, visible);
  visible.forEach((chunk) => paintNodes(painting, chunk));
}

type Colors = ReturnType<typeof readColors>;

interface Painting {
  context: CanvasRenderingContext2D;
  layout: GraphLayout;
  appearance: Appearance;
  colors: Colors;
  zoom: number;
  /** The width of a thin line. */
  thin: number;
}

let themeColors: Colors | undefined;

/** Reads the colors again: the theme has changed. */
export function forgetColors(): void {
  themeColors = undefined;
}

function readColors() {
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

interface Area {
  top: number;
  bottom: number;
  left: number;
  right: number;
}

function paintFrames({ context, layout, colors, zoom }: Painting, view: Area): void {
  for (const { of, x, y, width, height } of layout.frames) {
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

function paintLines({ context, layout, appearance, colors, zoom, thin }: Painting, chunk: number): void {
  const laid = layout.layoutOf(chunk);
  if (!laid) {
    return;
  }
  const { of } = layout.chunked.chunks[chunk];
  const corner = layout.corners[chunk];
  const flags = appearance.state?.flags ?? {};
  const labeled = new Set<number>();
  laid.lines.forEach((points, index) => {
    const [from] = of[index];
    const node = layout.graph.nodes[from];
    const bad = flags[node.id] !== undefined;
    context.strokeStyle = bad ? colors.bad : colors.line;
    context.lineWidth = bad ? 2 * thin : thin;
    const moved = points.map(({ x, y }) => ({ x: x + corner.x, y: y + corner.y }));
    paintArrow(context, moved);
    paintCount(context, of[index], layout.chunked.chunkOf[of[index][1]] === chunk && zoom > READABLE ? moved : [], colors);
    if (zoom > READABLE && layout.chunked.chunkOf[from] === chunk && node.type && !of[index][4] && !labeled.has(from)) {
      labeled.add(from);
      const start = moved[0];
      context.fillStyle = colors.dim;
      context.font = `10px ${colors.font}`;
      context.textAlign = "left";
      context.fillText(cutLeft(node.type, MOST_TYPE_LETTERS), start.x + 4, start.y + 12);
    }
  });
  const above = layout.layoutOf(chunk - 1);
  const before = layout.corners[chunk - 1];
  for (const [port, place] of Object.entries(laid.enter)) {
    const leaves = above?.leave[Number(port)];
    if (leaves && before) {
      context.strokeStyle = flags[layout.graph.nodes[Number(port)].id] ? colors.bad : colors.line;
      context.lineWidth = thin;
      const [a, b] = [{ x: leaves.x + before.x, y: leaves.y + before.y }, { x: place.x + corner.x, y: place.y + corner.y }];
      context.beginPath();
      context.moveTo(a.x, a.y);
      context.bezierCurveTo(a.x, (a.y + b.y) / 2, b.x, (a.y + b.y) / 2, b.x, b.y);
      context.stroke();
    }
  }
}

/** Draws an arrow through the middles between the points. */
function paintArrow(context: CanvasRenderingContext2D, points: readonly Point[]): void {
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

/** Writes the number of values of an edge beside its arrow. */
function paintCount(context: CanvasRenderingContext2D, [, , , , count]: GraphEdge, points: readonly Point[], colors: Colors): void {
  const last = points.at(-1);
  if (count && last) {
    context.fillStyle = colors.text;
    context.font = `600 11px ${colors.font}`;
    context.textAlign = "left";
    context.fillText(`×${count}`, last.x + 6, last.y - 8);
  }
}

/** The edges to the next iteration: dashed, at the right side. */
function paintBackEdges({ context, layout, colors, zoom }: Painting, visible: readonly number[]): void {
  const { chunkOf, back } = layout.chunked;
  const [first, last] = [visible[0] ?? 0, visible.at(-1) ?? -1];
  context.setLineDash([4, 3]);
  context.strokeStyle = colors.line;
  context.lineWidth = 1;
  for (const edge of back) {
    const [from, to] = edge;
    if (chunkOf[to] > last || chunkOf[from] < first) {
      continue;
    }
    const [a, b] = [layout.middleOf(from), layout.middleOf(to)];
    const [start, end] = [a.x + layout.sizeOf(from)[0] / 2, b.x + layout.sizeOf(to)[0] / 2];
    const out = Math.max(start, end) + 40;
    context.beginPath();
    context.moveTo(start, a.y);
    context.bezierCurveTo(out, a.y, out, b.y, end, b.y);
    context.stroke();
    paintCount(context, edge, zoom > READABLE ? [{ x: end + 8, y: b.y - 4 }] : [], colors);
  }
  context.setLineDash([]);
}

function paintNodes(painting: Painting, chunk: number): void {
  const { context, layout, colors } = painting;
  if (!layout.layoutOf(chunk)) {
    const corner = layout.corners[chunk];
    context.fillStyle = colors.dim;
    context.font = `12px ${colors.font}`;
    context.textAlign = "left";
    context.fillText("…", corner.x + 80, corner.y + 30);
    return;
  }
  const { first, end } = layout.chunked.chunks[chunk];
  for (let node = first; node < end; node++) {
    paintNode(painting, node);
  }
}

function paintNode({ context, layout, appearance, colors, zoom, thin }: Painting, index: number): void {
  const node = layout.graph.nodes[index];
  const [width, height] = layout.sizeOf(index);
  const { x, y } = layout.middleOf(index);
  const [left, top] = [x - width / 2, y - height / 2];
  const bad = appearance.flagged(node);
  const fill = appearance.color(node);
  context.beginPath();
  context.roundRect(left, top, width, height, node.kind === "op" ? RADIUS : 12);
  context.fillStyle = colors.background;
  context.fill();
  context.fillStyle = fill ?? (index === appearance.current ? (zoom < READABLE ? colors.current : colors.lit) : zoom < READABLE && bad ? colors.bad : colors.node);
  context.fill();
  if (appearance.found.has(index)) {
    context.fillStyle = colors.found;
    context.fill();
  }
  const executed = appearance.executed(index);
  context.setLineDash(executed || index === appearance.current ? [] : [3, 2]);
  context.lineWidth = thin * (index === appearance.current ? 3 : bad || index === appearance.selected || index === appearance.pointed ? 2 : 1);
  context.strokeStyle = index === appearance.current ? colors.current : bad ? colors.bad : index === appearance.selected || index === appearance.pointed ? colors.focus : colors.line;
  context.stroke();
  context.setLineDash([]);
  const set = appearance.breakpoints.has(node.line);
  if (set || index === appearance.pointed) {
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
  context.fillStyle = fill ? (dark ? "#fff" : "#000") : bad ? colors.bad : executed || index === appearance.current ? colors.text : colors.dim;
  context.font = `${index === appearance.current ? "700" : "500"} 12px ${colors.font}`;
  const opens = node.kind === "op" || node.kind === "end" ? "" : "▸ ";
  const name = node.values.join(", ");
  context.fillText(`${opens}${node.label}${bad ? " ⚠" : ""}`, x + 5, name ? y - 4 : y + 4, width - 24);
  if (name) {
    context.fillStyle = fill ? (dark ? "#fff" : "#000") : index === appearance.current ? colors.text : colors.dim;
    context.font = `10.5px ${colors.font}`;
    context.fillText(cutLeft(name, Math.floor((width - 26) / 6.3)), x + 5, y + 12);
  }
}

function darkness(color: string): boolean {
  const [red, green, blue] = color.match(/\d+/g)!.map(Number) as [number, number, number];
  return 0.299 * red + 0.587 * green + 0.114 * blue < 140;
}

function cutLeft(text: string, most: number): string {
  return text.length > most ? `…${text.slice(text.length - Math.max(1, most - 1))}` : text;
}
