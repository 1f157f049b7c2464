// The elements of a tensor view around its stage: header, texts and legend.

import type { FileFormat, Moment, Subject } from "../../tensor/messages";
import { button, element } from "../page/elements";
import type { Content } from "./content";
import { type NonfiniteCounts, cellDescription, legendOf, nonfiniteCounts } from "./text";

export interface ViewActions {
  togglePin(): void;
  refresh(): void;
  useSelectedFrame(): void;
  goToNonfinite(): void;
  save(format: FileFormat): void;
}

export class ViewLayout {
  readonly statistics = element("p", { className: "statistics" });
  readonly distance = element("p", { className: "distance" });
  readonly readout = element("p", { className: "readout", role: "status" });
  readonly png: HTMLButtonElement;
  private readonly title = element("h1");
  private readonly type = element("span", { className: "type" });
  private readonly message = element("p", { className: "message", role: "status" });
  private readonly legend = element("div", { className: "legend" });
  private readonly description = element("p", { className: "words" });
  private readonly origin = element("p", { className: "when" });
  private readonly pin: HTMLButtonElement;
  private readonly refresh: HTMLButtonElement;
  private readonly selectedFrame: HTMLButtonElement;

  constructor(
    root: HTMLElement,
    controls: HTMLElement,
    private readonly stage: HTMLElement,
    actions: ViewActions,
  ) {
    this.pin = button("Pin", "Update the view at each step", () => actions.togglePin());
    this.refresh = button("Refresh", "Read the current values", () => actions.refresh());
    this.selectedFrame = button("From here", "Resolve names in the selected frame", () => actions.useSelectedFrame());
    this.png = button("PNG", "Save the picture as a PNG file", () => actions.save("png"));
    const next = button("Next NaN", "Go to the next NaN or Inf (N)", () => actions.goToNonfinite());
    const csv = button("CSV", "Save the visible rows and columns as a CSV file", () => actions.save("csv"));
    const buttons = element("span", { className: "buttons" }, this.pin, this.refresh, this.selectedFrame, next, csv, this.png);
    const header = element("header", {}, this.title, this.type, buttons);
    const footer = element("footer", {}, this.legend, this.readout, this.description, this.origin);
    root.append(element("main", {}, header, this.statistics, controls, this.distance, this.message, stage, footer));
  }

  showType(type: string): void {
    this.type.textContent = this.type.title = type;
    this.statistics.textContent = "";
  }

  showMessage(text: string): void {
    this.message.textContent = text;
  }

  /** Shows no content, and why. */
  clear(reason: string): void {
    this.legend.replaceChildren();
    for (const each of [this.readout, this.description, this.distance, this.statistics]) {
      each.textContent = "";
    }
    this.showMessage(reason);
  }

  /** Shows the expression, and at which moment the values were read, if they were. */
  showSubject({ expression, pinned, session, moment }: Subject, read: Moment | undefined, hasContent: boolean): void {
    this.title.textContent = this.title.title = expression;
    this.pin.setAttribute("aria-pressed", String(pinned));
    const ended = session === "ended";
    const outdated = read !== undefined && read.moment !== moment && !pinned;
    const place = hasContent && read?.place ? `Values at ${read.place}. ` : "";
    const next = pinned ? " The view updates in the next session." : "";
    this.origin.textContent = place + (ended ? `The session has ended.${next}` : outdated ? "These values are from another stop." : "");
    this.stage.classList.toggle("stale", ended || outdated);
    this.refresh.disabled = session !== "stopped";
    this.selectedFrame.disabled = ended;
  }

  /** Shows the texts about a content. */
  describe({ options, shown, histogram }: Content): void {
    const first = shown[0]?.loaded;
    this.showMessage("");
    if (options.mode === "table") {
      this.description.textContent = "Double-click an element or press Enter to change it. nncdbg recomputes dependent values.";
    } else {
      this.description.textContent = first ? cellDescription(first.slice, options) : `The histogram has ${options.bins} bins over the finite elements.`;
    }
    const counts: NonfiniteCounts | undefined = histogram ?? (first && nonfiniteCounts(first));
    const difference = shown.length > 1 ? shown.find(({ part }) => part === "difference") : undefined;
    this.legend.replaceChildren(
      ...(counts ? legendOf(counts) : []),
      ...(difference ? legendOf(nonfiniteCounts(difference.loaded), "difference: ") : []),
    );
  }
}
