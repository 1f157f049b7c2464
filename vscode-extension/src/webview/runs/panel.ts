// A chart with its name, the place at the pointer as text, and the first NaN of each curve.

import { button, element } from "../page/elements";
import { numberText } from "../page/numbers";
import { Chart, type ChartHandlers, type ChartOptions, type Place } from "./chart";
import type { Curve, Plot } from "./curves";

export class Panel {
  readonly readout = element("output", {});
  private readonly title = element("h2", {});
  private readonly notes = element("p", { className: "notes" });
  readonly chart: Chart;
  readonly root: HTMLElement;
  plot: Plot = { name: "", curves: [] };

  constructor(private readonly handlers: ChartHandlers) {
    this.chart = new Chart(handlers);
    this.root = element("section", {}, element("header", {}, this.title, this.readout), this.chart.root, this.notes);
  }

  draw(plot: Plot, options: ChartOptions): void {
    this.plot = plot;
    this.root.dataset.name = plot.name;
    const isAsChosen = this.chart.draw(plot, options);
    this.title.textContent = isAsChosen ? plot.name : `${plot.name} (linear: not all values are positive)`;
    this.notes.replaceChildren(...plot.curves.filter(({ nonfinite }) => nonfinite.length).map((curve) => this.note(curve)));
  }

  /** Marks the place of another chart's step, or none. */
  show(place: Place | undefined): void {
    this.chart.mark(place);
    const text = place ? placeText(place) : "";
    // A screen reader reads each new text.
    if (text !== this.readout.textContent) {
      this.readout.textContent = text;
    }
  }

  private note(curve: Curve): HTMLButtonElement {
    const [index] = curve.nonfinite;
    const text = `${curveText(curve)}: ${numberName(curve.values[index])} at step ${curve.steps[index]}`;
    return button(text, `Open step ${curve.steps[index]} of run ${curve.run.number}`, () => this.handlers.opened({ curve, index }), "note");
  }
}

/** Number, name and part of a curve. */
export function curveText({ run, part }: Curve): string {
  return [`#${run.number}`, run.name, part === "train" ? "" : `(${part})`].filter(Boolean).join(" ");
}

export function placeText({ curve, index }: Place): string {
  return `${curveText(curve)}, step ${curve.steps[index]}: ${numberName(curve.values[index])}`;
}

function numberName(value: number): string {
  return Number.isFinite(value) ? numberText(Number(value.toPrecision(6))) : Number.isNaN(value) ? "NaN" : value > 0 ? "Inf" : "-Inf";
}
