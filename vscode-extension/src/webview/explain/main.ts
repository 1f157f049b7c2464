// The statements that a value was computed from, nearest first; where NaN or Inf originates, why.

import "./style.css";
import { Children } from "../page/children";
import { follow, keep, kept, tell } from "../page/connection";
import { statisticsText } from "../statistics/words";
import { element } from "../page/elements";
import type { Answer, Cause, Step, Value } from "./answer";
import { thumbnail } from "./thumbnail";

const NOTHING = "No value has been computed yet. Step over a statement (F10), or right-click a value and choose Explain Value.";
const state = kept({ expression: undefined as string | undefined });
const main = element("main", {});
const list = element("ol", {});
const statements = new Children<HTMLLIElement>(list);
document.body.append(main);

function show({ value, steps, more }: Answer): void {
  if (value === null) {
    say(NOTHING);
    return;
  }
  statements.show(steps, stepOf);
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
  const head = element("header", {}, element("b", { title: value }, value));
  if (state.expression !== undefined) {
    const words = "Explain the most abnormal value at each stop";
    const follow = element("button", { type: "button", className: "text", title: words, label: words }, "Most abnormal");
    follow.onclick = () => choose(undefined);
    head.append(follow);
  }
  return head;
}

function choose(expression: string | undefined): void {
  state.expression = expression;
  keep(state);
  tell({ kind: "ask", asks: { expression } });
}

function stepOf(step: Step): HTMLLIElement {
  const target = { source: step.source, line: step.line };
  const go = element("button", { type: "button", className: "statement", title: step.text || `Inputs of ${step.graph}` });
  const where = `${step.graph}${step.graph ? ", " : ""}line ${step.line}`;
  go.append(element("span", { className: "where" }, where), element("span", { className: "op" }, step.op ?? "inputs"));
  go.setAttribute("aria-label", `${step.op ?? "inputs"}, ${where}. Go to the line.`);
  go.onclick = () => tell({ kind: "open", target });
  return element("li", {}, go, ...step.values.map(valueOf));
}

function valueOf(value: Value): HTMLElement {
  const name = element("button", { type: "button", className: "name", title: `${value.name}: ${value.type ?? ""}\nExplain this value` });
  name.append(element("bdi", {}, value.name));
  name.onclick = () => choose(value.name);
  const head = element("div", { className: "head" }, name, element("span", { className: "type" }, value.type ?? ""));
  const box = element("div", { className: `value${abnormal(value) ? " bad" : ""}` }, head);
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
    view.onclick = () => tell({ kind: "tensor", expression: value.name });
    box.append(view);
  }
  box.append(...(value.origin ?? []).map(causeOf));
  return box;
}

function abnormal({ stats }: Value): boolean {
  return stats !== undefined && stats.nan + stats.posinf + stats.neginf > 0;
}

function causeOf({ kind, cause, evidence, hint, inside, note }: Cause): HTMLElement {
  const box = element("div", { className: "cause" }, element("b", {}, `${kind} originates here`));
  const said = cause && `${cause}${inside ? ` (in its ${inside})` : ""}${evidence ? `: ${evidence}` : ""}`;
  for (const [text, className] of [[said, "why"], [hint, "hint"], [note, "hint"]] as const) {
    if (text) {
      box.append(element("div", { className }, text));
    }
  }
  return box;
}

function say(words: string): void {
  const retry = state.expression === undefined ? [] : [header(state.expression)];
  main.replaceChildren(...retry, element("p", { className: "words", role: "status" }, words));
}

/** Up and down go from statement to statement. */
document.addEventListener("keydown", (event) => {
  const buttons = [...main.querySelectorAll<HTMLElement>(".statement")];
  const at = buttons.findIndex((each) => each.closest("li")?.contains(document.activeElement));
  const next = { ArrowDown: at + 1, ArrowUp: Math.max(0, at - 1), Home: 0, End: buttons.length - 1 }[event.key];
  if (next !== undefined && buttons[next]) {
    buttons[next].focus();
    event.preventDefault();
  }
});

follow(show, say, ({ expression }: { expression?: string }) => {
  state.expression = expression;
  keep(state);
});
if (state.expression !== undefined) {
  choose(state.expression);
}
