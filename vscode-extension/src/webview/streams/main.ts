// The page *Timeline of Streams*: one lane for the host and each stream, statements as boxes, waits as arrows.

import type { FromStreams, StreamTimeline, ToStreams } from "../../streams/messages";
import { button, element, status, svgElement } from "../page/elements";
import { Host } from "../page/host";
import { BOX, LANE, type StatementBox, firstScale, fittingScale, laidOut, neighbor } from "./layout";
import "./style.css";
import { described, note, raceText } from "./text";

const ZOOM = 1.4;
/** Lanes have one of these colors, in turn. */
const COLORS = 6;
/** The width of a character in a box. */
const CHARACTER = 6.6;

const host = new Host<ToStreams, FromStreams, { scale: number | undefined }>({ scale: undefined });
let shown: StreamTimeline | undefined;
let boxes: SVGGElement[] = [];

const message = element("p", { className: "message", role: "status" });
const hint = element("p", { className: "hint" });
const tools = element(
  "div",
  { className: "tools", role: "toolbar", label: "Zoom" },
  button("+", "Zoom in (+)", () => zoom(ZOOM)),
  button("−", "Zoom out (-)", () => zoom(1 / ZOOM)),
  button("Fit", "Show the whole timeline (0)", fit),
);
const heads = element("div", { className: "heads" });
const svg = svgElement("svg", { role: "group", "aria-label": "Statements. Left and right arrow: along the stream. Up and down: other streams. Enter: open the line." });
const stage = element("div", { className: "stage" }, heads, svg);
const main = element("main", {}, element("div", { className: "bar" }, tools, hint), message, stage);
document.body.append(status("Waiting for a stop of the program …"));

function show(timeline: StreamTimeline): void {
  const measuredNow = shown?.measured !== timeline.measured;
  shown = timeline;
  message.textContent = "";
  hint.textContent = note(timeline);
  if (!main.isConnected) {
    document.body.replaceChildren(main);
  }
  heads.replaceChildren(
    ...timeline.lanes.map(({ name, device, waits }, lane) =>
      element("div", { className: `head color${lane % COLORS}` }, element("b", {}, name), ` ${device}`, element("span", { className: "waits" }, waits.join(", "))),
    ),
  );
  if (measuredNow) {
    host.keep({ scale: undefined });
  }
  draw();
  reveal(timeline.statements.findIndex(({ state }) => state === "current"));
}

const room = () => stage.clientWidth - heads.clientWidth;

function draw(): void {
  if (!shown) {
    return;
  }
  const timeline = shown;
  const focused = boxes.findIndex((each) => each === document.activeElement);
  const layout = laidOut(timeline, host.state.scale ?? firstScale(timeline, room()));
  svg.setAttribute("width", String(Math.max(layout.width, room())));
  svg.setAttribute("height", String(layout.height));
  const lines = timeline.lanes.map((_, lane) => svgElement("line", { class: "lane", x1: 0, x2: "100%", y1: (lane + 0.5) * LANE, y2: (lane + 0.5) * LANE }));
  const arrows = layout.arrows.map(({ event, path, of: [, from, to] }) => {
    const words = `${timeline.statements[to].name}, line ${timeline.statements[to].line}, waits for ${event} of ${timeline.statements[from].name}, line ${timeline.statements[from].line}`;
    return svgElement("path", { class: "wait", d: path, "marker-end": "url(#head)" }, svgElement("title", {}, words));
  });
  boxes = layout.boxes.map((box) => boxOf(timeline, box));
  const races = layout.races.map(({ of, path }) => svgElement("path", { class: "race", d: path }, svgElement("title", {}, raceText(timeline, of))));
  svg.replaceChildren(arrowHead(), ...lines, ...boxes, ...arrows, ...races);
  const current = timeline.statements.findIndex(({ state }) => state === "current");
  const reachable = boxes[focused >= 0 ? focused : Math.max(0, current)];
  reachable?.setAttribute("tabindex", "0");
  if (focused >= 0) {
    reachable?.focus({ preventScroll: true });
  }
}

function arrowHead(): SVGDefsElement {
  const shape = svgElement("path", { d: "M0 0.5 L8 4 L0 7.5 z" });
  return svgElement("defs", {}, svgElement("marker", { id: "head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, shape));
}

function boxOf(timeline: StreamTimeline, { of, index, x, y, width }: StatementBox): SVGGElement {
  const label = described(timeline, of);
  const group = svgElement(
    "g",
    { class: `statement color${of.lane % COLORS} ${of.state}`, role: "button", tabindex: -1, "aria-label": label },
    svgElement("title", {}, label),
    // The color of the current statement is translucent: its lane must not show through.
    svgElement("rect", { class: "base", x, y, width, height: BOX, rx: 3 }),
    svgElement("rect", { class: "box", x, y, width, height: BOX, rx: 3 }),
  );
  if (of.state === "current") {
    group.setAttribute("aria-current", "step");
  }
  const most = Math.floor((width - 8) / CHARACTER);
  if (most > 2) {
    group.append(svgElement("text", { x: x + 6, y: y + 18 }, of.name.length > most ? `${of.name.slice(0, most - 1)}…` : of.name));
  }
  group.addEventListener("click", () => host.send({ kind: "openLine", line: of.line }));
  group.addEventListener("keydown", (event) => press(event, index));
  return group;
}

function press(event: KeyboardEvent, index: number): void {
  if (!shown || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  if (event.key === "Enter" || event.key === " ") {
    host.send({ kind: "openLine", line: shown.statements[index].line });
    event.preventDefault();
    return;
  }
  const next = neighbor(shown, index, event.key);
  if (next !== undefined) {
    boxes[index].setAttribute("tabindex", "-1");
    boxes[next].setAttribute("tabindex", "0");
    boxes[next].focus({ preventScroll: true });
    reveal(next);
    event.preventDefault();
  }
}

/** Scrolls to a statement that is not in view. */
function reveal(index: number): void {
  const rect = boxes[index]?.querySelector("rect");
  if (!rect) {
    return;
  }
  const [left, right] = [Number(rect.getAttribute("x")), Number(rect.getAttribute("x")) + Number(rect.getAttribute("width"))];
  if (left < stage.scrollLeft || right > stage.scrollLeft + room()) {
    stage.scrollLeft = (left + right - room()) / 2;
  }
  const top = Number(rect.getAttribute("y"));
  if (top < stage.scrollTop || top + LANE > stage.scrollTop + stage.clientHeight) {
    stage.scrollTop = top - stage.clientHeight / 2;
  }
}

function zoom(factor: number): void {
  if (shown) {
    const middle = (stage.scrollLeft + room() / 2) * factor;
    host.keep({ scale: (host.state.scale ?? firstScale(shown, room())) * factor });
    draw();
    stage.scrollLeft = middle - room() / 2;
  }
}

function fit(): void {
  if (shown) {
    host.keep({ scale: fittingScale(shown, room()) });
    draw();
  }
}

const KEYS: Record<string, (() => void) | undefined> = { "+": () => zoom(ZOOM), "=": () => zoom(ZOOM), "-": () => zoom(1 / ZOOM), "0": fit };
document.addEventListener("keydown", ({ key, ctrlKey, metaKey }) => {
  if (!ctrlKey && !metaKey) {
    KEYS[key]?.();
  }
});
stage.addEventListener("wheel", (event) => {
  if (event.ctrlKey) {
    event.preventDefault();
    zoom(event.deltaY < 0 ? ZOOM : 1 / ZOOM);
  }
}, { passive: false });
new ResizeObserver(() => draw()).observe(stage);

host.receive({
  timeline: ({ timeline }) => show(timeline),
  status: ({ text }) => {
    message.textContent = text;
    if (!main.isConnected) {
      document.body.replaceChildren(status(text));
    }
  },
});
host.send({ kind: "ready" });
