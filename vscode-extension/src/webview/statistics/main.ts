// The page of *Statistics*: the values near the current statement, abnormal values first.

import type { SourceLine } from "../../pages/messages";
import type { FromView, ToView } from "../../views/messages";
import { Children } from "../page/children";
import { element, moveFocusByKeys, status } from "../page/elements";
import { Host } from "../page/host";
import { plot } from "./plot";
import { sparkline } from "./sparkline";
import "./style.css";
import { type NearbyValue, type Series, statisticsText, valueText } from "./text";

interface ValueFrame {
  title: string;
  source: SourceLine["source"];
}

/** The answer to `nncdbg/nearby`. */
interface NearbyValues {
  frames: ValueFrame[];
  values: NearbyValue[];
  considered: number;
  rule: string;
}

const NOTHING = "No value has been computed yet. Step over a statement (F10) to see its results here.";
const host = new Host<ToView<NearbyValues>, FromView>({});
const main = element("main", {});
const list = element("ul", { label: "Values near the current statement" });
const rows = new Children<HTMLLIElement>(list);
const summary = element("summary", {});
const explanation = element("p", {});
const details = element("details", {}, summary, explanation);
document.body.append(main);
/** The keys of the rows with a plot. */
const plotted = new Set<string>();
/** The key of the row whose plot was used last: it stays in view until the user turns to another place. */
let kept: string | undefined;
let latest: NearbyValues | undefined;

function show(answer: NearbyValues): void {
  latest = answer;
  const { frames, values, considered, rule } = answer;
  if (values.length === 0) {
    main.replaceChildren(status(NOTHING));
    return;
  }
  const focused = (document.activeElement as HTMLElement | null)?.dataset.key;
  const contents = values.map((value) => ({ value, frame: frames[value.frame], large: plotted.has(keyOf(value, frames[value.frame])) }));
  rows.show(contents, ({ value, frame, large }) => row(value, frame, large));
  const title = considered > values.length ? `${values.length} of the ${considered} nearest values` : "Sorted";
  setText(summary, `${title}: abnormal values first`);
  setText(explanation, rule);
  if (!list.isConnected) {
    main.replaceChildren(details, list);
  }
  if (focused !== undefined) {
    const again = [...list.querySelectorAll<HTMLElement>("[data-key]")].find((each) => each.dataset.key === focused);
    again?.focus({ preventScroll: true });
  }
  if (kept !== undefined) {
    [...list.children].find((each) => (each as HTMLElement).dataset.row === kept)?.scrollIntoView({ block: "nearest" });
  }
}

/** Sets the text only if it differs, which avoids a new layout. */
function setText(target: Element, text: string): void {
  if (target.textContent !== text) {
    target.textContent = text;
  }
}

function keyOf({ name }: NearbyValue, { title }: ValueFrame): string {
  // The title of a run's frame has its step.
  return `${title.replace(/ .*/, "")} ${name}`;
}

function row(value: NearbyValue, frame: ValueFrame, large: boolean): HTMLLIElement {
  const { title, source } = frame;
  const key = keyOf(value, frame);
  const go = element("button", { type: "button", className: "go", title: `${value.name}: ${value.type}\nGo to line ${value.line}` });
  go.setAttribute("aria-label", `${value.name}, ${title}, ${valueText(value)}, go to line ${value.line}`);
  go.dataset.key = `line of ${key}`;
  go.onclick = () => host.send({ kind: "openLine", target: { source, line: value.line } });
  const head = element("span", { className: "head" }, element("b", {}, element("bdi", {}, value.shortName)), element("span", { className: "type" }, value.type));
  const figures = element("span", { className: "figures" });
  if (value.why) {
    figures.append(element("span", { className: "why" }, value.why), " ");
  }
  figures.append(statisticsText(value.stats, !value.why));
  go.append(head, figures);
  const view = element("button", { type: "button", className: "tensor", title: `View ${value.name}`, label: `View tensor ${value.name}` }, "▦");
  view.onclick = () => host.send({ kind: "viewTensor", expression: value.name });
  const curves = value.series ? [toggle(value, value.series, key, large)] : [];
  const goTo = (statements: number) => {
    kept = key;
    host.send({ kind: "goTo", statements });
  };
  const plots = value.series && large ? [plot(value.name, value.series, key, goTo)] : [];
  const item = element("li", { className: `rank${value.rank}` }, go, ...curves, view, ...plots);
  item.dataset.row = key;
  return item;
}

/** The small curve, which shows and hides the plot. */
function toggle(value: NearbyValue, series: Series, key: string, large: boolean): HTMLButtonElement {
  const created = element("button", { type: "button", className: "curve", title: large ? "Hide the plot" : "Plot the value" }, sparkline(series));
  created.setAttribute("aria-expanded", String(large));
  created.setAttribute("aria-label", `Plot ${value.name}`);
  created.dataset.key = `curve of ${key}`;
  created.onclick = () => {
    kept = plotted.delete(key) ? undefined : key;
    if (kept !== undefined) {
      plotted.add(kept);
    }
    if (latest) {
      show(latest);
    }
  };
  return created;
}

moveFocusByKeys(".go");
document.addEventListener("wheel", () => (kept = undefined), { passive: true });
list.addEventListener("focusin", ({ target }) => {
  if ((target as HTMLElement).closest("li")?.dataset.row !== kept) {
    kept = undefined;
  }
});
host.receive({
  answer: ({ answer }) => show(answer),
  status: ({ text }) => main.replaceChildren(status(text)),
  choice: () => undefined,
});
host.send({ kind: "ready", choice: {} });
