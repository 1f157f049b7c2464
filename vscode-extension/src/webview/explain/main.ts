// The page of *Explain Value*: the statements that a value was computed from, nearest first, and causes of NaN and Inf.

import type { FromView, ToView } from "../../views/messages";
import { Children } from "../page/children";
import { button, element, moveFocusByKeys, status } from "../page/elements";
import { Host } from "../page/host";
import { statisticsText } from "../statistics/text";
import type { Cause, Explanation, ExplainedStep, ExplainedValue } from "./answer";
import "./style.css";
import { thumbnail } from "./thumbnail";

const NOTHING = "No value has been computed yet. Step over a statement (F10), or right-click a value and choose Explain Value.";

/** The value to explain; by default the most abnormal one of each stop. */
interface ExplainChoice {
  expression?: string;
}

const host = new Host<ToView<Explanation, ExplainChoice>, FromView<ExplainChoice>, ExplainChoice>({});
const main = element("main", {});
const list = element("ol", {});
const statements = new Children<HTMLLIElement>(list);
document.body.append(main);

function show({ value, steps, more }: Explanation): void {
  if (value === null) {
    showStatus(NOTHING);
    return;
  }
  statements.show(steps, stepItem);
  list.setAttribute("aria-label", `Statements used to compute ${value}`);
  main.querySelectorAll(":scope > :not(ol)").forEach((each) => each.remove());
  if (!list.isConnected) {
    main.append(list);
  }
  list.before(header(value));
  if (more) {
    list.after(element("p", { className: "words" }, "Further statements are not shown."));
  }
}

function header(value: string): HTMLElement {
  const created = element("header", {}, element("b", { title: value }, value));
  if (host.state.expression !== undefined) {
    created.append(button("Most abnormal", "Explain the most abnormal value at each stop", () => choose(undefined), "text"));
  }
  return created;
}

function choose(expression: string | undefined): void {
  host.keep({ expression });
  host.send({ kind: "choose", choice: { expression } });
}

function stepItem({ source, line, text, graph, op, values }: ExplainedStep): HTMLLIElement {
  const go = element("button", { type: "button", className: "statement", title: text || `Inputs of ${graph}` });
  const where = `${graph}${graph ? ", " : ""}line ${line}`;
  go.append(element("span", { className: "where" }, where), element("span", { className: "op" }, op ?? "inputs"));
  go.setAttribute("aria-label", `${op ?? "inputs"}, ${where}. Go to the line.`);
  go.onclick = () => host.send({ kind: "openLine", target: { source, line } });
  return element("li", {}, go, ...values.map(valueBox));
}

function valueBox(value: ExplainedValue): HTMLElement {
  const name = element("button", { type: "button", className: "name", title: `${value.name}: ${value.type ?? ""}\nExplain this value` });
  name.append(element("bdi", {}, value.name));
  name.onclick = () => choose(value.name);
  const head = element("div", { className: "head" }, name, element("span", { className: "type" }, value.type ?? ""));
  const box = element("div", { className: `value${isAbnormal(value) ? " bad" : ""}` }, head);
  const figures = value.elements ?? (value.stats ? statisticsText(value.stats) : "");
  if (figures) {
    box.append(element("div", { className: "figures" }, figures));
  }
  if (value.note) {
    box.append(element("div", { className: "note" }, value.note));
  }
  if (value.picture) {
    const view = element("button", { type: "button", className: "picture", title: `View ${value.name}`, label: `View tensor ${value.name}` });
    view.append(thumbnail(value.picture, value.name));
    view.onclick = () => host.send({ kind: "viewTensor", expression: value.name });
    box.append(view);
  }
  box.append(...(value.origin ?? []).map(causeBox));
  return box;
}

function isAbnormal({ stats }: ExplainedValue): boolean {
  return stats !== undefined && stats.nan + stats.posinf + stats.neginf > 0;
}

function causeBox({ kind, cause, evidence, hint, inside, note }: Cause): HTMLElement {
  const box = element("div", { className: "cause" }, element("b", {}, `${kind} originates here`));
  const reason = cause && `${cause}${inside ? ` (in its ${inside})` : ""}${evidence ? `: ${evidence}` : ""}`;
  for (const [text, className] of [[reason, "why"], [hint, "hint"], [note, "hint"]] as const) {
    if (text) {
      box.append(element("div", { className }, text));
    }
  }
  return box;
}

function showStatus(text: string): void {
  const { expression } = host.state;
  main.replaceChildren(...(expression === undefined ? [] : [header(expression)]), status(text));
}

moveFocusByKeys(".statement");
host.receive({
  answer: ({ answer }) => show(answer),
  status: ({ text }) => showStatus(text),
  choice: ({ choice }) => host.keep({ expression: choice.expression }),
});
host.send({ kind: "ready", choice: host.state });
