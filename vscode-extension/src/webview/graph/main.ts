// The page of the graph tab: the graph, a search, colors, and what is said of a statement.

import "./style.css";
import type { FromTab, ToTab } from "../../graph/messages";
import { drawBar } from "../color/colorBar";
import type { Scale } from "../color/colors";
import { button, choice, element } from "../page/elements";
import { STATISTICS, View } from "./view";

declare function acquireVsCodeApi(): { postMessage(message: FromTab): void };

const code = acquireVsCodeApi();
const source = (document.getElementById("layout") as HTMLElement).textContent;
const worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
const view = new View(worker, (message) => code.postMessage(message));
let open: string[] = [];
let statistic = -1;
let all: string[] = [];

const ask = () => code.postMessage({ kind: "ask", open, statistics: statistic >= 0 });

// -- search -------------------------------------------------------------------------------------

const input = element("input", { type: "search", placeholder: "Search op, value or shape", label: "Search" });
const count = element("span", { className: "count", role: "status" });
let found: number[] = [];
let at = -1;
const search = () => {
  found = view.search(input.value.trim());
  at = -1;
  count.textContent = input.value.trim() ? `${found.length} found` : "";
};
input.oninput = search;
input.onkeydown = (event) => {
  if (event.key === "Enter" && found.length) {
    at = (at + (event.shiftKey ? -1 : 1) + found.length) % found.length;
    count.textContent = `${at + 1} of ${found.length}`;
    view.choose(found[at]);
  }
};

// -- tools --------------------------------------------------------------------------------------

const follow = button("Follow", "Keep the current statement in view", () => {
  view.follow = !view.follow;
  follow.setAttribute("aria-pressed", String(view.follow));
  if (view.follow) {
    view.goToCurrent();
  }
});
follow.setAttribute("aria-pressed", "true");
const expand = button("Expand all", "Expand all visible layers, loops and branches", () => {
  open = [...new Set([...open, ...all])];
  ask();
});
const collapse = button("Collapse all", "Collapse all layers, loops and branches", () => {
  open = [];
  ask();
});
const colors = choice("Color by", [["-1", "nothing"], ...STATISTICS.map((name, index) => [String(index), name] as const)], "-1", (value) => {
  statistic = Number(value);
  ask();
});
const zoom = element("span", { className: "zoom" }, button("+", "Zoom in (+)", () => view.step(1)), button("−", "Zoom out (-)", () => view.step(-1)));
const bar = element("canvas", { className: "bar", hidden: true });
const words = element("p", { className: "said", role: "status" });
const message = element("p", { className: "words", role: "status" });
const tools = element("div", { className: "tools", role: "toolbar", label: "Graph" }, input, count, follow, expand, collapse, colors, zoom);
document.body.append(element("main", {}, tools, message, element("div", { className: "stage" }, view.canvas, bar), words));

view.said = (text) => (words.textContent = text);
let shown: Scale | undefined;
const drawScale = () => {
  bar.hidden = !shown;
  if (shown) {
    drawBar(bar, shown, Math.max(60, Math.min(160, view.canvas.clientHeight - 32)));
  }
};
view.scaled = (scale) => {
  shown = scale;
  drawScale();
};
// The labels have the color of the theme.
new ResizeObserver(drawScale).observe(view.canvas);
new MutationObserver(drawScale).observe(document.body, { attributes: true, attributeFilter: ["class"] });
view.toggled = ({ id }) => {
  open = [...open, id];
  ask();
};
view.closed = (statement) => {
  open = open.filter((each) => each !== statement && !each.startsWith(`${statement}/`) && !each.startsWith(`${statement}.`));
  ask();
};

window.addEventListener("message", ({ data }: MessageEvent<ToTab>) => {
  switch (data.kind) {
    case "graph":
      open = data.graph.blocks.flatMap(({ node }) => (node === null ? [] : [node]));
      all = data.graph.nodes.flatMap(({ kind, id }) => (kind === "op" || kind === "end" ? [] : [id]));
      message.textContent = data.graph.leftOut ? `${data.graph.leftOut} statements are not shown.` : "";
      view.show(data.graph);
      search();
      break;
    case "state":
      message.textContent = "";
      view.follows(data.state, statistic);
      break;
    case "breakpoints":
      view.mark(data.lines);
      break;
    case "say":
      message.textContent = data.words;
      break;
  }
});
code.postMessage({ kind: "ready" });
