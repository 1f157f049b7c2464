// The values near the place where the program stands: name, what is abnormal, statistics, and how they went.

import "./style.css";
import { element } from "../tensor/elements";
import { follow, tell } from "../page/connection";
import { Value, statisticsText, wordsOf } from "./words";
import { sparkline } from "./sparkline";

interface Frame {
  title: string;
  source: { name?: string; path?: string; sourceReference?: number };
}

interface Answer {
  frames: Frame[];
  values: Value[];
  considered: number;
  rule: string;
}

const NOTHING = "Nothing is computed yet. Step over a statement (F10), and what it wrote is shown here.";
const TABLE_ICON =
  '<svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" fill="none" stroke="currentColor">' +
  '<rect x="2.5" y="2.5" width="11" height="11"/><path d="M2.5 6.2h11M2.5 9.8h11M6.2 2.5v11M9.8 2.5v11"/></svg>';

const main = element("main", {});
document.body.append(main);

function show({ frames, values, considered, rule }: Answer): void {
  const focused = (document.activeElement as HTMLElement | null)?.dataset.key;
  const { scrollTop } = document.documentElement;
  if (values.length === 0) {
    say(NOTHING);
    return;
  }
  const list = element("ul", { label: "Values near the current statement" });
  list.append(...values.map((value) => row(value, frames[value.frame])));
  const title = considered > values.length ? `${values.length} of the ${considered} nearest values` : "Sorted";
  const details = element("details", {}, element("summary", {}, `${title}: the abnormal first`), element("p", {}, rule));
  details.open = (main.querySelector("details") as HTMLDetailsElement | null)?.open ?? false;
  main.replaceChildren(details, list);
  document.documentElement.scrollTop = scrollTop;
  const again = [...main.querySelectorAll<HTMLElement>("[data-key]")].find((each) => each.dataset.key === focused);
  again?.focus({ preventScroll: true });
}

function row(value: Value, frame: Frame): HTMLLIElement {
  const go = element("button", { type: "button", className: "go", title: `${value.name}: ${value.type}\nGo to line ${value.line}` });
  go.setAttribute("aria-label", `${value.name}, ${frame.title}, ${wordsOf(value)}, go to line ${value.line}`);
  go.dataset.key = `${frame.title} ${value.name}`;
  go.onclick = () => tell({ kind: "open", target: { source: frame.source, line: value.line } });
  const head = element("span", { className: "head" }, element("b", {}, value.name), element("span", { className: "type" }, value.type));
  const figures = element("span", { className: "figures" });
  if (value.why) {
    figures.append(element("span", { className: "why" }, value.why), " ");
  }
  figures.append(statisticsText(value.stats));
  go.append(head, figures);
  const view = element("button", { type: "button", className: "tensor", title: `View ${value.name}`, label: `View tensor ${value.name}` });
  view.innerHTML = TABLE_ICON;
  view.onclick = () => tell({ kind: "tensor", expression: value.name });
  const item = element("li", { className: `rank${value.rank}` }, go);
  if (value.series) {
    item.append(sparkline(value.series));
  }
  item.append(view);
  return item;
}

function say(words: string): void {
  main.replaceChildren(element("p", { className: "words", role: "status" }, words));
}

/** Up and down go from row to row, Home and End to the first and last. */
document.addEventListener("keydown", (event) => {
  const rows = [...main.querySelectorAll<HTMLElement>(".go")];
  const at = rows.findIndex((each) => each.closest("li")?.contains(document.activeElement));
  const next = { ArrowDown: at + 1, ArrowUp: Math.max(0, at - 1), Home: 0, End: rows.length - 1 }[event.key];
  if (next !== undefined && rows[next]) {
    rows[next].focus();
    event.preventDefault();
  }
});

follow(show, say);
