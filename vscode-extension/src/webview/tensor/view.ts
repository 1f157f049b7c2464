// The view of one tensor: it asks for what is chosen, and shows what comes.

import type { FromView, Histogram, SavedFormat, Slice, Subject, ToView } from "../../tensor/messages";
import { Abandoned, Asking } from "./asking";
import { Choices, Known, Part, choicesFor, fitted } from "./choices";
import { scaleOf } from "../color/colors";
import { Controls, compared, partShown } from "./controls";
import { button, element } from "../page/elements";
import { csvOf, pngOf } from "./exporting";
import { cellOf, movement, shownAt } from "./keys";
import type { Library } from "./library";
import { Loading } from "./loading";
import { gridOf, positionOf, product, shapeOf } from "../page/numbers";
import { readOut } from "./readout";
import { Content, Shown, Stage } from "./stage";
import { TableView } from "./table";
import { Odds, distanceText, legendOf, oddsOf, sentenceOf, statisticsText } from "./words";

/** What is kept while the view is hidden. */
export interface Kept {
  choices?: Choices;
  type?: string;
}

/** What is looked at, and how. */
interface Looked {
  known: Known;
  choices: Choices;
}

export class View {
  private readonly title = element("h1");
  private readonly type = element("span", { className: "type" });
  private readonly pin = button("Pin", "Update the view at each step", () => this.togglePin());
  private readonly again = button("Refresh", "Read the current values", () => void this.refresh());
  private readonly here = button("From here", "Resolve names in the selected frame", () => this.send({ kind: "here" }));
  private readonly next = button("Next NaN", "Go to the next NaN or Inf (N)", () => void this.goToNonfinite());
  private readonly csv = button("CSV", "Save the visible rows and columns as a CSV file", () => void this.export("csv"));
  private readonly png = button("PNG", "Save the picture as a PNG file", () => void this.export("png"));
  private readonly statistics = element("p", { className: "statistics" });
  private readonly distance = element("p", { className: "distance" });
  private readonly controls = new Controls((choices) => this.choose(choices));
  private readonly message = element("p", { className: "message", role: "status" });
  private readonly legend = element("div", { className: "legend" });
  private readonly readout = element("p", { className: "readout", role: "status" });
  private readonly words = element("p", { className: "words" });
  private readonly when = element("p", { className: "when" });
  private readonly table = new TableView();
  private readonly stage: Stage;
  private readonly asking: Asking;
  private loading: Loading | undefined;
  private subject: Subject | undefined;
  private looked: Looked | undefined;
  private content: Content | undefined;
  /** The position of the element that was searched for last. */
  private found = -1;
  /** The moment that is shown, or that it was tried to show. */
  private shownAt: { moment: number; place: string } | undefined;

  constructor(
    root: HTMLElement,
    private readonly send: (message: FromView) => void,
    private readonly keep: (kept: Kept) => void,
    private readonly kept: Kept,
    library: Library,
  ) {
    const zoomTo = (columns: [number, number]) => this.looked && this.choose({ ...this.looked.choices, window: { rows: [0, 1], columns } });
    this.stage = new Stage((...place) => this.pointed(...place), zoomTo, library);
    this.asking = new Asking(send);
    const buttons = element("span", { className: "buttons" }, this.pin, this.again, this.here, this.next, this.csv, this.png);
    const top = element("header", {}, this.title, this.type, buttons);
    const foot = element("footer", {}, this.legend, this.readout, this.words, this.when);
    root.append(element("main", {}, top, this.statistics, this.controls.root, this.distance, this.message, this.stage.root, foot));
    root.addEventListener("keydown", (event) => this.key(event));
  }

  // -- what the host says ------------------------------------------------------------------------

  hear(message: ToView): void {
    if (message.kind === "subject") {
      this.follow(message);
    } else if (message.kind === "set") {
      this.say(message.error ?? "");
    } else {
      this.asking.hear(message);
    }
  }

  private follow(subject: Subject): void {
    const before = this.subject;
    this.subject = subject;
    this.loading ??= new Loading(this.asking, subject.expression);
    this.title.textContent = this.title.title = subject.expression;
    this.pin.setAttribute("aria-pressed", String(subject.pinned));
    if (this.shownAt?.moment === subject.moment) {
      this.shownAt.place = subject.place;
    }
    if (!before && subject.kept) {
      void this.refresh(subject.kept);
    } else if (subject.standing === "still" && subject.moment !== before?.moment && (subject.pinned || !before)) {
      void this.refresh();
    }
    this.sayWhen();
  }

  /** From when the values are, and whether they are still so. */
  private sayWhen(): void {
    const { standing, moment, pinned } = this.subject as Subject;
    const from = this.content && this.shownAt?.place ? `Values at ${this.shownAt.place}. ` : "";
    const over = standing === "over";
    const passed = this.shownAt !== undefined && this.shownAt.moment !== moment && !pinned;
    const follows = pinned ? " The view updates in the next session." : "";
    this.when.textContent = from + (over ? `The session has ended.${follows}` : passed ? "These values are from another stop." : "");
    this.stage.root.classList.toggle("stale", over || passed);
    this.again.disabled = standing !== "still";
    this.here.disabled = over;
  }

  private togglePin(): void {
    const { pinned, moment } = this.subject as Subject;
    this.send({ kind: "pin", pinned: !pinned });
    if (!pinned && this.shownAt?.moment !== moment) {
      void this.refresh();
    }
  }

  // -- asking ------------------------------------------------------------------------------------

  private choose(choices: Choices): void {
    if (this.looked) {
      this.looked.choices = choices;
      this.keepChoices();
      this.showControls();
      void this.refresh();
    }
  }

  private keepChoices(): void {
    this.keep({ choices: this.looked?.choices, type: this.looked?.known.type });
  }

  /** Asks for the values of this moment, or again for those of the moment that was shown last. */
  private async refresh(kept?: { moment: number; place: string }): Promise<void> {
    const { subject, loading } = this;
    if (!subject || !loading || (subject.standing !== "still" && !kept)) {
      return;
    }
    this.asking.abandonAll();
    this.asking.kept = kept !== undefined;
    this.asking.early = kept ? [] : subject.early;
    const { moment } = kept ?? subject;
    // The place may be told after the moment.
    const place = () => kept?.place ?? (this.subject?.moment === moment ? this.subject.place : subject.place);
    const came = () => {
      this.shownAt = { moment, place: place() };
      this.sayWhen();
    };
    try {
      await this.load(loading, came);
    } catch (error) {
      if (!(error instanceof Abandoned)) {
        this.blank((error as Error).message);
        came();
      }
    }
  }

  /** `came` is called when the values are those of the moment that they were asked at. */
  private async load(loading: Loading, came: () => void): Promise<void> {
    const looked = this.looked ?? this.learn(await loading.probe());
    const { known, choices } = looked;
    if (product(known.shape) === 0) {
      const probe = await loading.probe();
      if (probe.type === known.type) {
        this.blank(`${known.type} has no elements.`);
        came();
        return;
      }
      this.learn(probe);
      return this.load(loading, came);
    }
    const part = partShown(choices);
    const content = await this.ask(loading, looked, part);
    if (!content) {
      // The value has become one of another type.
      return this.load(loading, came);
    }
    if (this.content && same(this.content, content)) {
      // The very tensor that is shown: picture and statistics stand.
      came();
      return;
    }
    this.content = content;
    this.show(content);
    if (choices.mode === "table") {
      await this.fillTable(loading, looked, part);
    }
    came();
    await said(this.distance, async () => (compared(choices) ? distanceText(await loading.comparison(choices)) : ""));
    await said(this.statistics, async () => (known.dtype === "str" ? "" : statisticsText(await loading.statistics(choices, "here"))));
  }

  /** What the mode shows; undefined if the value is not of the type that was thought. */
  private async ask(loading: Loading, looked: Looked, part: Part): Promise<Content | undefined> {
    const { choices } = looked;
    let histogram: Histogram | undefined;
    const shown: Shown[] = [];
    if (choices.mode === "histogram" || choices.mode === "table") {
      if (this.learn(await loading.probe()) !== looked) {
        return undefined;
      }
      histogram = choices.mode === "histogram" ? await loading.histogram(choices, part) : undefined;
      return { ...looked, shown, histogram };
    }
    const both: Part[] = choices.mode === "line" ? ["here", "there"] : ["here", "there", "difference"];
    for (const each of part === "all" ? both : [part]) {
      const loaded = await loading.picture(choices, each);
      if (each !== "there" && this.learn(loaded.slice) !== looked) {
        return undefined;
      }
      shown.push({ part: each, loaded });
    }
    return { ...looked, shown, histogram };
  }

  /** What is looked at; anew if it is of another type than before. */
  private learn({ type, dtype }: Slice): Looked {
    if (this.looked?.known.type === type) {
      return this.looked;
    }
    const known = { type, dtype, shape: shapeOf(type) };
    const before = this.looked?.choices ?? (this.kept.type === type ? this.kept.choices : undefined);
    const choices = before ? fitted(before, dtype, known.shape) : choicesFor(dtype, known.shape);
    this.looked = { known, choices };
    this.keepChoices();
    this.type.textContent = this.type.title = type;
    this.statistics.textContent = "";
    this.showControls();
    return this.looked;
  }

  // -- going to an element, and saving -------------------------------------------------------------

  /** To the next NaN or Inf after the cursor, in C order. */
  private async goToNonfinite(): Promise<void> {
    const { loading, looked } = this;
    if (!loading || !looked || looked.known.dtype === "str") {
      return;
    }
    const { known, choices } = looked;
    const here = choices.at.map((place, axis) => (axis === choices.rows && choices.mode !== "line" ? choices.cursor[0] : axis === choices.columns ? choices.cursor[1] : place));
    const position = positionOf(here, known.shape);
    try {
      const index = await loading.nonfinite((position + (this.found === position ? 1 : 0)) % Math.max(1, product(known.shape)));
      if (index === null) {
        this.say("All elements are finite.");
        return;
      }
      this.found = positionOf(index, known.shape);
      const mode = choices.mode === "histogram" ? "table" : choices.mode;
      this.readout.textContent = `[${index.join(", ")}]`;
      this.choose({ ...choices, mode, ...shownAt(index, { ...choices, mode }, known.shape) });
    } catch (error) {
      if (!(error instanceof Abandoned)) {
        this.say((error as Error).message);
      }
    }
  }

  private async export(format: SavedFormat): Promise<void> {
    const { loading, looked } = this;
    if (!loading || !looked) {
      return;
    }
    try {
      const data = format === "png" ? pngOf(this.stage.drawn) : await csvOf(loading, looked.known, looked.choices, partShown({ ...looked.choices, mode: "table" }));
      this.send({ kind: "save", format, data });
    } catch (error) {
      if (!(error instanceof Abandoned)) {
        this.say((error as Error).message);
      }
    }
  }

  // -- showing -----------------------------------------------------------------------------------

  /** Nothing is drawn, and why. */
  private blank(words: string): void {
    this.content = undefined;
    this.stage.clear();
    this.legend.replaceChildren();
    for (const each of [this.readout, this.words, this.distance, this.statistics]) {
      each.textContent = "";
    }
    this.say(words);
  }

  private say(words: string): void {
    this.message.textContent = words;
  }

  private show(content: Content): void {
    const { choices, shown, histogram } = content;
    const first = shown[0]?.loaded;
    this.say("");
    this.showControls();
    if (choices.mode === "table") {
      this.stage.lend(this.table.root);
      this.words.textContent = "Double-click an element or press Enter to change it. nncdbg recomputes dependent values.";
    } else {
      this.stage.show(content);
      this.readAtCursor(content);
      this.words.textContent = first ? sentenceOf(first.slice, choices) : `The histogram has ${choices.bins} bins over the finite elements.`;
    }
    const odds: Odds | undefined = histogram ?? (first && oddsOf(first));
    const apart = shown.find(({ part }) => part === "difference");
    this.legend.replaceChildren(...(odds ? legendOf(odds) : []), ...(apart && shown.length > 1 ? legendOf(oddsOf(apart.loaded), "difference: ") : []));
  }

  private showControls(): void {
    if (this.looked) {
      const { known, choices } = this.looked;
      const first = this.content?.shown[0];
      const scale = first && scaleOf(first.loaded.cells.values, choices.map);
      this.png.disabled = choices.mode === "table" || !this.content;
      this.controls.show(choices, known, scale && [scale.low, scale.high]);
    }
  }

  private async fillTable(loading: Loading, { known, choices }: Looked, part: Part): Promise<void> {
    const { dtype, shape } = known;
    const index = (row: number, column: number) =>
      choices.at.map((place, axis) => (axis === choices.rows ? row : axis === choices.columns ? column : place));
    const set = (row: number, column: number, text: string) =>
      this.send({ kind: "set", index: index(row, column), value: dtype === "str" ? JSON.stringify(text) : text });
    await this.table.show(
      {
        rows: shape[choices.rows] ?? 1,
        columns: shape[choices.columns] ?? 1,
        page: async ({ rows, columns }) => {
          const { cells } = await loading.page(choices, part, dtype, rows, columns);
          return { cells, grid: gridOf(cells.shape, choices.rows, choices.columns) };
        },
        pointed: (row, column) => {
          choices.cursor = [row, column];
          this.readout.textContent = `[${index(row, column).join(", ")}]`;
        },
        edit: part === "here" ? set : undefined,
      },
      choices.cursor,
      (error) => error instanceof Abandoned || this.say(error.message),
    );
  }

  // -- the cursor --------------------------------------------------------------------------------

  private pointed(shown: Shown, channel: number, row: number, column: number, chosen: boolean): void {
    if (!this.content) {
      return;
    }
    if (chosen) {
      const { choices } = this.content;
      const steps = shown.loaded.slice.stride;
      choices.cursor = [
        (choices.window?.rows[0] ?? 0) + row * (steps[choices.rows] ?? 1),
        (choices.window?.columns[0] ?? 0) + column * (steps[choices.columns] ?? 1),
      ];
      if (this.looked) {
        // What is asked for already is to have the cursor there too.
        this.looked.choices.cursor = choices.cursor;
      }
      this.keepChoices();
      this.stage.showCursor(choices.cursor, true);
    }
    this.readout.textContent = readOut(this.content, shown, channel, row, column);
  }

  /** What is at the cursor now, where a person has looked at it before. */
  private readAtCursor({ choices, shown }: Content): void {
    const [first] = shown;
    if (!first || choices.mode === "line" || !this.readout.textContent) {
      this.readout.textContent = "";
      return;
    }
    const { slice, cells } = first.loaded;
    const [row, column] = cellOf(choices, slice.stride);
    const { rows, columns } = gridOf(cells.shape, choices.rows, choices.columns);
    if (row >= 0 && column >= 0 && row < rows && column < columns) {
      this.pointed(first, 0, row, column, false);
      this.stage.showCursor(choices.cursor, true);
    }
  }

  private key(event: KeyboardEvent): void {
    const target = event.target as HTMLElement;
    if (!this.content || event.defaultPrevented || ["INPUT", "SELECT"].includes(target.tagName)) {
      return;
    }
    if (event.key === "n" && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      void this.goToNonfinite();
      return;
    }
    const { choices, known, shown } = this.content;
    const first = shown[0];
    const grid = first && gridOf(first.loaded.cells.shape, choices.rows, choices.columns);
    const found = movement(event, choices, known.shape, grid, first?.loaded.slice.stride ?? []);
    if (!found || (found.kind === "cursor" && target.tagName !== "CANVAS")) {
      return;
    }
    event.preventDefault();
    if (found.kind === "cursor") {
      this.pointed(first, 0, ...found.cursor, true);
    } else {
      this.choose({ ...choices, ...found.choices });
    }
  }
}

/** Whether nothing is to be drawn anew: the same pictures, of the same choices. */
function same(shown: Content, content: Content): boolean {
  const pictures = (each: Content) => each.shown.map(({ loaded }) => loaded);
  return (
    content.shown.length > 0 &&
    shown.choices === content.choices &&
    pictures(content).every((each, index) => each === pictures(shown)[index])
  );
}

/** Writes down what comes, or why it does not: the picture stays. */
async function said(place: HTMLElement, words: () => Promise<string>): Promise<void> {
  try {
    place.textContent = await words();
  } catch (error) {
    if (error instanceof Abandoned) {
      throw error;
    }
    place.textContent = (error as Error).message;
  }
}
