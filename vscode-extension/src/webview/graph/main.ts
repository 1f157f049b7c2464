// The page of the graph tab: the graph, a search, colors, and the description of a statement.

import type { FromGraph, ToGraph } from "../../graph/messages";
import { drawBar } from "../color/colorBar";
import type { Scale } from "../color/colors";
import { button, choice, element, onThemeChange } from "../page/elements";
import { Host } from "../page/host";
import { STATISTICS } from "./progress";
import "./style.css";
import { GraphView } from "./view";

const host = new Host<ToGraph, FromGraph>({});
let expanded: string[] = [];
let expandable: string[] = [];
let statistic = -1;
/** The user has chosen what colors show. */
let chosen = false;
let scale: Scale | undefined;

const bar = element("canvas");
const nonfinite = element("span", { className: "nonfinite" }, "NaN, Inf");
const legend = element("div", { className: "bar", hidden: true }, bar, nonfinite);
const description = element("p", { className: "said", role: "status" });
const message = element("p", { className: "words", role: "status" });

const script = (document.getElementById("worker") as HTMLElement).textContent;
const worker = new Worker(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
const view = new GraphView(worker, {
  described: (text) => (description.textContent = text),
  scaled: (changed) => {
    scale = changed;
    drawScale();
  },
  expanded: ({ id }) => choose([...expanded, id]),
  collapsed: (statement) => choose(expanded.filter((each) => each !== statement && !each.startsWith(`${statement}/`) && !each.startsWith(`${statement}.`))),
  send: (sent) => host.send(sent),
});

function choose(blocks: string[]): void {
  expanded = blocks;
  host.send({ kind: "choose", expanded, statistics: statistic >= 0 });
}

function drawScale(): void {
  legend.hidden = !scale;
  if (scale) {
    drawBar(bar, scale, Math.max(60, Math.min(160, view.canvas.clientHeight - 32)));
  }
}

const input = element("input", { type: "search", placeholder: "Search op, value or shape", label: "Search" });
const count = element("span", { className: "count", role: "status" });
let found: number[] = [];
let shown = -1;
const search = () => {
  found = view.search(input.value.trim());
  shown = -1;
  count.textContent = input.value.trim() ? `${found.length} found` : "";
};
input.oninput = search;
input.onkeydown = (event) => {
  if (event.key === "Enter" && found.length) {
    shown = (shown + (event.shiftKey ? -1 : 1) + found.length) % found.length;
    count.textContent = `${shown + 1} of ${found.length}`;
    view.select(found[shown]);
  }
};

const follow = button("Follow", "Keep the current statement in view", () => follow.setAttribute("aria-pressed", String(view.toggleFollowing())));
follow.setAttribute("aria-pressed", "true");
const expand = button("Expand all", "Expand all visible layers, loops and branches", () => choose([...new Set([...expanded, ...expandable])]));
const collapse = button("Collapse all", "Collapse all layers, loops and branches", () => choose([]));
const colors = choice("Color by", [["-1", "nothing"], ...STATISTICS.map((name, index) => [String(index), name] as const)], "-1", (value) => {
  chosen = true;
  statistic = Number(value);
  choose(expanded);
});
const states = button("States", "Show states and constants", () => {
  states.setAttribute("aria-pressed", String(view.toggleStates()));
  search();
});
states.setAttribute("aria-pressed", "false");
const zoom = element("span", { className: "zoom" }, button("Fit", "Show the whole graph (0)", () => view.fitAll()), button("+", "Zoom in (+)", () => view.zoom(1)), button("−", "Zoom out (-)", () => view.zoom(-1)));
const tools = element("div", { className: "tools", role: "toolbar", label: "Graph" }, input, count, follow, states, expand, collapse, colors, zoom);
document.body.append(element("main", {}, tools, message, element("div", { className: "stage" }, view.canvas, legend), description));
new ResizeObserver(drawScale).observe(view.canvas);
// The labels have the color of the theme.
onThemeChange(drawScale);

host.receive({
  graph: ({ graph }) => {
    expanded = graph.blocks.flatMap(({ node }) => (node === null ? [] : [node]));
    expandable = graph.nodes.flatMap(({ kind, id }) => (kind === "op" || kind === "end" ? [] : [id]));
    message.textContent = graph.leftOut ? `${graph.leftOut} statements are not shown.` : "";
    view.show(graph);
    search();
  },
  state: ({ state }) => {
    message.textContent = "";
    view.showState(state, statistic);
    if (state.ended && !chosen) {
      // The heat map of the whole run.
      chosen = true;
      statistic = 0;
      (colors.querySelector("select") as HTMLSelectElement).value = "0";
      choose(expanded);
    }
  },
  breakpoints: ({ lines }) => view.showBreakpoints(lines),
  status: ({ text }) => (message.textContent = text),
});
host.send({ kind: "ready" });
