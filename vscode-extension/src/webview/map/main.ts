// The page of *Graph Map*: layers and ops around the current statement, as a drawing with zoom and pan.

import type { FromView, ToView } from "../../views/messages";
import { element, status } from "../page/elements";
import { Host } from "../page/host";
import type { Neighborhood } from "./answer";
import { Drawing } from "./drawing";
import { laidOut } from "./layout";
import { PanZoom } from "./panZoom";
import "./style.css";

/** Statements that stay expanded, and that stay collapsed. */
const MOST_KEPT = 30;

/** Blocks on the stack are expanded unless the user has collapsed them, others are collapsed. */
interface MapChoice {
  open: string[];
  closed: string[];
}

const host = new Host<ToView<Neighborhood, MapChoice>, FromView<MapChoice>, MapChoice & { zoom: number }>({ open: [], closed: [], zoom: 1 });
const main = element("main", {});
document.body.append(main);

let shown: Neighborhood | undefined;
const drawing = new Drawing({
  open: ({ source, line }) => shown && host.send({ kind: "openLine", target: { source: shown.sources[source], line } }),
  toggle: (statement, expands) => shown && toggle(shown, statement, expands),
});
const panZoom = new PanZoom(drawing.root, host.state.zoom, (zoom) => host.keep({ zoom }));

function show(neighborhood: Neighborhood): void {
  shown = neighborhood;
  const focused = (document.activeElement as SVGElement | null)?.dataset.id;
  const layout = laidOut(neighborhood);
  drawing.show(layout);
  const current = layout.nodes.find(({ of }) => of.state === "current");
  if (panZoom.root.parentElement !== main) {
    main.replaceChildren(panZoom.root, panZoom.tools);
  }
  panZoom.show(layout, current);
  if (focused && (document.activeElement as SVGElement | null)?.dataset.id !== focused) {
    panZoom.root.querySelector<SVGElement>(`[data-id="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }
}

function toggle({ clusters }: Neighborhood, statement: string, expands: boolean): void {
  const onStack = clusters.some(({ node, onStack }) => node === statement && onStack);
  const wasClosed = host.state.closed.includes(statement);
  const others = (ids: string[], added: boolean) => [...ids.filter((each) => each !== statement), ...(added ? [statement] : [])].slice(-MOST_KEPT);
  host.keep({ open: others(host.state.open, expands && !wasClosed), closed: others(host.state.closed, !expands && onStack) });
  host.send({ kind: "choose", choice: choice() });
}

function choice(): MapChoice {
  const { open, closed } = host.state;
  return { open, closed };
}

host.receive({
  answer: ({ answer }) => show(answer),
  status: ({ text }) => main.replaceChildren(status(text)),
  choice: ({ choice }) => host.keep(choice),
});
host.send({ kind: "ready", choice: host.state.open.length || host.state.closed.length ? choice() : {} });
