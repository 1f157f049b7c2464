// The values near the place where the program stands: name, what is abnormal, statistics, and how they went.

import "./style.css";
import { element } from "../page/elements";
import { Children } from "../page/children";
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

const NOTHING = "No value has been computed yet. Step over a statement (F10) to see its results here.";
const main = element("main", {});
const list = element("ul", { label: "Values near the current statement" });
const rows = new Children<HTMLLIElement>(list);
const summary = element("summary", {});
const explanation = element("p", {});
const details = element("details", {}, summary, explanation);
document.body.append(main);

function show({ frames, values, considered, rule }: Answer): void {
  if (values.length === 0) {
    say(NOTHING);
    return;
  }
  const focused = (document.activeElement as HTMLElement | null)?.dataset.key;
  rows.show(
    values.map((value) => ({ value, frame: frames[value.frame] })),
    ({ value, frame }) => row(value, frame),
  );
  const title = considered > values.length ? `${values.length} of the ${considered} nearest values` : "Sorted";
  write(summary, `${title}: abnormal values first`);
  write(explanation, rule);
  if (!list.isConnected) {
    main.replaceChildren(details, list);
  }
  if (focused !== undefined) {
    const again = [...list.querySelectorAll<HTMLElement>("[data-key]")].find((each) => each.dataset.key === focused);
    again?.focus({ preventScroll: true });
  }
}

/** What is written already is not laid out again. */
function write(place: Element, words: string): void {
  if (place.textContent !== words) {
    place.textContent = words;
  }
}

function row(value: Value, frame: Frame): HTMLLIElement {
  const go = element("button", { type: "button", className: "go", title: `${value.name}: ${value.type}\nGo to line ${value.line}` });
  go.setAttribute("aria-label", `${value.name}, ${frame.title}, ${wordsOf(value)}, go to line ${value.line}`);
  go.dataset.key = `${frame.title} ${value.name}`;
  go.onclick = () => tell({ kind: "open", target: { source: frame.source, line: value.line } });
  const head = element("span", { className: "head" }, element("b", {}, element("bdi", {}, value.shortName)), element("span", { className: "type" }, value.type));
  const figures = element("span", { className: "figures" });
  if (value.why) {
    figures.append(element("span", { className: "why" }, value.why), " ");
  }
  figures.append(statisticsText(value.stats, !value.why));
  go.append(head, figures);
  const view = element("button", { type: "button", className: "tensor", title: `View ${value.name}`, label: `View tensor ${value.name}` });
  view.append("▦");
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
  const buttons = [...main.querySelectorAll<HTMLElement>(".go")];
  const at = buttons.findIndex((each) => each.closest("li")?.contains(document.activeElement));
  const next = { ArrowDown: at + 1, ArrowUp: Math.max(0, at - 1), Home: 0, End: buttons.length - 1 }[event.key];
  if (next !== undefined && buttons[next]) {
    buttons[next].focus();
    event.preventDefault();
  }
});

follow(show, say);
