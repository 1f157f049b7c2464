// The page *Run Curves*: the tracked values of the chosen runs over the steps, one chart for each name.

import type { FromCurves, PageRun, ToCurves } from "../../journal/messages";
import { button, element, onThemeChange, status } from "../page/elements";
import { Host } from "../page/host";
import type { Place } from "./chart";
import { extentOf, ownerOf, plotsOf } from "./curves";
import { Panel } from "./panel";
import { RunList } from "./runList";
import "./style.css";
import { nearestIndex } from "./thinning";

/** The runs that are shown at first: the newest. */
const MOST_SHOWN = 6;
const NO_TRACKS = "The chosen runs have no tracked values yet. `--track NAME=EXPRESSION` tracks a value; in a PyTorch script, `nncdbg.torch.track`.";

interface State {
  shown: number[];
  /** The newest run so far: later ones are shown when they appear. */
  newest: number;
  log: boolean;
  /** The steps that the user has selected. */
  range: [number, number] | undefined;
}

const host = new Host<ToCurves, FromCurves, State>({ shown: [], newest: 0, log: false, range: undefined });
let runs: readonly PageRun[] = [];
let file = "";

const list = new RunList(toggle);
const error = element("p", { className: "error", role: "status" });
const logSwitch = button("Logarithmic", "Logarithmic scale of the values", () => {
  host.keep({ log: !host.state.log });
  draw();
});
const resetZoom = button("All Steps", "Show all steps (double-click in a chart)", () => zoom(undefined));
const HINT = "Click a point to debug its step. Drag to zoom. Dashed: the test part.";
const tools = element("div", { className: "tools" }, logSwitch, resetZoom, element("span", { className: "hint" }, HINT));
const charts = element("div", { className: "charts" });
const main = element("main", {}, tools, error, list.root, charts);
document.body.append(status("Reading the journal …"));
const panels = new Map<string, Panel>();
/** The place at the pointer, which stays marked when new values arrive. */
let pointed: { name: string; place: Place } | undefined;

function receive(message: Extract<ToCurves, { kind: "runs" }>): void {
  ({ runs, file } = message);
  error.textContent = message.error;
  const { newest } = host.state;
  const added = runs.map(({ number }) => number).filter((number) => number > newest);
  host.keep({ shown: [...host.state.shown, ...added.slice(-MOST_SHOWN)], newest: Math.max(newest, ...added) });
  if (!main.isConnected) {
    document.body.replaceChildren(main);
    new ResizeObserver(() => drawCharts()).observe(charts);
  }
  draw();
  if (added.length) {
    list.reveal(added[added.length - 1]);
  }
}

function toggle(run: number, on: boolean): void {
  const others = host.state.shown.filter((each) => each !== run);
  host.keep({ shown: on ? [...others, run] : others });
  draw();
}

function zoom(range: [number, number] | undefined): void {
  host.keep({ range });
  draw();
}

function draw(): void {
  const { shown, log, range } = host.state;
  logSwitch.setAttribute("aria-pressed", String(log));
  resetZoom.disabled = range === undefined;
  list.show(runs, new Set(shown));
  list.color();
  drawCharts();
}

function drawCharts(): void {
  const { shown, log, range } = host.state;
  const plots = plotsOf(runs, new Set(shown));
  const kept = new Set(plots.map(({ name }) => name));
  [...panels.keys()].filter((name) => !kept.has(name)).forEach(remove);
  if (plots.length === 0) {
    charts.replaceChildren(status(NO_TRACKS));
    return;
  }
  charts.replaceChildren(...plots.map(({ name }) => panelOf(name).root));
  const steps = range ?? extentOf(plots);
  const widths = plots.map(({ name }) => panelOf(name).chart.root.clientWidth);
  plots.forEach((plot, index) => panelOf(plot.name).draw(plot, { range: steps, log, width: widths[index] }));
  const panel = pointed && panels.get(pointed.name);
  if (pointed && panel) {
    point(panel, placeIn(panel, pointed.place));
  }
}

function remove(name: string): void {
  panels.get(name)?.chart.dispose();
  panels.delete(name);
}

function panelOf(name: string): Panel {
  let panel = panels.get(name);
  if (!panel) {
    const created = new Panel({
      pointed: (place) => point(created, place),
      opened: ({ curve, index }) => {
        const step = curve.steps[index];
        host.send({ kind: "openStep", run: ownerOf(curve.run, step, runs).number, step });
      },
      selected: (low, high) => zoom([low, high]),
    });
    created.chart.root.ondblclick = () => zoom(undefined);
    panels.set(name, (panel = created));
  }
  return panel;
}

/** Marks the step of a place in all charts; the menu of the chart is about this step. */
function point(panel: Panel, place: Place | undefined): void {
  pointed = place && { name: panel.plot.name, place };
  for (const each of panels.values()) {
    each.show(place && (each === panel ? place : placeIn(each, place)));
  }
  const { root } = panel.chart;
  if (place) {
    const step = place.curve.steps[place.index];
    const run = ownerOf(place.curve.run, step, runs).number;
    root.dataset.vscodeContext = JSON.stringify({ webviewSection: "step", file, run, step, preventDefaultContextMenuItems: true });
  }
}

/** The nearest step of the same run and part in another chart. */
function placeIn({ plot }: Panel, { curve, index }: Place): Place | undefined {
  const same = plot.curves.find(({ run, part }) => run.number === curve.run.number && part === curve.part);
  return same && { curve: same, index: nearestIndex(same.steps, curve.steps[index]) };
}

onThemeChange(draw);
host.receive({
  runs: receive,
  choose: ({ run }) => {
    if (!host.state.shown.includes(run)) {
      toggle(run, true);
    }
    list.reveal(run);
  },
});
host.send({ kind: "ready" });
