// The list of runs: a checkbox and a color for each, forks below their parents.

import type { PageRun } from "../../journal/messages";
import { Children } from "../page/children";
import { element } from "../page/elements";
import { treeOf } from "./curves";
import { colorOf } from "./runColors";

interface Item {
  number: number;
  name: string;
  details: string;
  depth: number;
}

export class RunList {
  readonly root = element("ul", { label: "Runs" });
  private readonly items = new Children<HTMLLIElement>(this.root);

  constructor(private readonly toggled: (run: number, on: boolean) => void) {}

  /** Shows the runs; those in `shown` are checked. */
  show(runs: readonly PageRun[], shown: ReadonlySet<number>): void {
    const contents = treeOf(runs).map(({ run, depth }): Item => ({ number: run.number, name: run.name, details: detailsOf(run), depth }));
    this.items.show(contents, (item) => this.itemOf(item));
    for (const checkbox of this.root.querySelectorAll("input")) {
      checkbox.checked = shown.has(Number(checkbox.dataset.run));
    }
  }

  /** Scrolls a run into view: with many runs, the shown ones are the last of a long list. */
  reveal(run: number): void {
    this.root.querySelector(`input[data-run="${run}"]`)?.closest("li")?.scrollIntoView({ block: "nearest" });
  }

  /** Colors the runs by the theme. */
  color(): void {
    for (const swatch of this.root.querySelectorAll<HTMLElement>(".swatch")) {
      swatch.style.background = colorOf(Number(swatch.dataset.run));
    }
  }

  private itemOf({ number, name, details, depth }: Item): HTMLLIElement {
    const checkbox = element("input", { type: "checkbox" });
    const swatch = element("span", { className: "swatch" });
    checkbox.dataset.run = swatch.dataset.run = String(number);
    checkbox.onchange = () => this.toggled(number, checkbox.checked);
    const title = element("b", {}, [`#${number}`, name].filter(Boolean).join(" "));
    const item = element("li", {}, element("label", {}, checkbox, swatch, title, element("span", { className: "details" }, details)));
    item.style.marginInlineStart = `${depth * 18}px`;
    return item;
  }
}

function detailsOf({ parent, parent_step, status, steps }: PageRun): string {
  const fork = parent === null ? "" : `fork of #${parent} at step ${parent_step}, `;
  return `${fork}${status}, ${steps} ${steps === 1 ? "step" : "steps"}`;
}
