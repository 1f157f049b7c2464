// The page of *Statistics*: the values near the current statement, abnormal values first.

import type { SourceLine } from "../../pages/messages";
import type { FromView, ToView } from "../../views/messages";
import { Children } from "../page/children";
import { element, moveFocusByKeys, status } from "../page/elements";
import { Host } from "../page/host";
import { sparkline } from "./sparkline";
import "./style.css";
import { type NearbyValue, statisticsText, valueText } from "./text";

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

function show({ frames, values, considered, rule }: NearbyValues): void {
  if (values.length === 0) {
    main.replaceChildren(status(NOTHING));
    return;
  }
  const focused = (document.activeElement as HTMLElement | null)?.dataset.key;
  rows.show(values.map((value) => ({ value, frame: frames[value.frame] })), ({ value, frame }) => row(value, frame));
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
}

/** Sets the text only if it differs, which avoids a new layout. */
function setText(target: Element, text: string): void {
  if (target.textContent !== text) {
    target.textContent = text;
  }
}

function row(value: NearbyValue, { title, source }: ValueFrame): HTMLLIElement {
  const go = element("button", { type: "button", className: "go", title: `${value.name}: ${value.type}\nGo to line ${value.line}` });
  go.setAttribute("aria-label", `${value.name}, ${title}, ${valueText(value)}, go to line ${value.line}`);
  go.dataset.key = `${title} ${value.name}`;
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
  return element("li", { className: `rank${value.rank}` }, go, ...(value.series ? [sparkline(value.series)] : []), view);
}

moveFocusByKeys(".go");
host.receive({
  answer: ({ answer }) => show(answer),
  status: ({ text }) => main.replaceChildren(status(text)),
  choice: () => undefined,
});
host.send({ kind: "ready", choice: {} });
