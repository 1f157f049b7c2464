// The list of runs: a checkbox and a color for each, forks below their parents.

import type { PageRun } from "../../journal/messages";
import { element } from "../page/elements";
import { treeOf } from "./curves";
import { colorOf } from "./runColors";

/** Creates one item for each run. */
export function runItems(runs: readonly PageRun[], shown: ReadonlySet<number>, toggle: (run: number, on: boolean) => void): HTMLLIElement[] {
  return treeOf(runs).map(({ run, depth }) => {
    const checkbox = element("input", { type: "checkbox", checked: shown.has(run.number) });
    checkbox.dataset.run = String(run.number);
    checkbox.onchange = () => toggle(run.number, checkbox.checked);
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = colorOf(run.number);
    const fork = run.parent === null ? "" : `fork of #${run.parent} at step ${run.parent_step}, `;
    const details = element("span", { className: "details" }, `${fork}${run.status}, ${run.steps} steps`);
    const label = element("label", {}, checkbox, swatch, element("b", {}, [`#${run.number}`, run.name].filter(Boolean).join(" ")), details);
    const item = element("li", {}, label);
    item.style.marginInlineStart = `${depth * 18}px`;
    return item;
  });
}
