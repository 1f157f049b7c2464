// Layers and ops around the current statement, as a drawing that can be zoomed and moved.

import "./style.css";
import { follow, keep, kept, tell } from "../page/connection";
import { element } from "../page/elements";
import type { Answer } from "./answer";
import { Drawing } from "./drawing";
import { laidOut } from "./layout";
import { Stage } from "./stage";

const MOST_TOGGLED = 60;

const state = kept({ open: [] as string[], closed: [] as string[], zoom: 1 });
const main = element("main", {});
document.body.append(main);

let answer: Answer | undefined;
const drawing = new Drawing({
  open: (node) => answer && tell({ kind: "open", target: { source: answer.sources[node.source], line: node.line } }),
  toggle: (statement, opens) => answer && toggle(answer, statement, opens),
});
const stage = new Stage(drawing.root, state.zoom, (zoom) => {
  state.zoom = zoom;
  keep(state);
});

function show(given: Answer): void {
  answer = given;
  const focused = (document.activeElement as SVGElement | null)?.dataset.id;
  const layout = laidOut(answer);
  drawing.show(layout);
  const current = layout.nodes.find(({ of }) => of.state === "current");
  if (stage.root.parentElement !== main) {
    main.replaceChildren(stage.root, stage.tools);
  }
  stage.fits(layout, current);
  if (focused && (document.activeElement as SVGElement | null)?.dataset.id !== focused) {
    stage.root.querySelector<SVGElement>(`[data-id="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }
}

/** What is on the stack is open unless it was closed, all else is closed unless it was opened. */
function toggle(answer: Answer, statement: string, opens: boolean): void {
  const onStack = answer.clusters.some(({ node, onStack }) => node === statement && onStack);
  const without = (ids: string[]) => ids.filter((each) => each !== statement);
  const wasClosed = state.closed.includes(statement);
  state.closed = without(state.closed);
  state.open = without(state.open);
  if (opens && !wasClosed) {
    state.open.push(statement);
  } else if (!opens && onStack) {
    state.closed.push(statement);
  }
  state.open = state.open.slice(-MOST_TOGGLED / 2);
  state.closed = state.closed.slice(-MOST_TOGGLED / 2);
  keep(state);
  tell({ kind: "ask", asks: { open: state.open, closed: state.closed } });
}

function say(words: string): void {
  main.replaceChildren(element("p", { className: "words", role: "status" }, words));
}

if (state.open.length || state.closed.length) {
  tell({ kind: "ask", asks: { open: state.open, closed: state.closed } });
}
follow(show, say);
