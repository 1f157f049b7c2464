// The view of one tensor: loads the content for the display options, and shows it.

import type { FileFormat, FromTensor, Moment, Slice, Subject, ToTensor } from "../../tensor/messages";
import { scaleOf } from "../color/colors";
import type { Host } from "../page/host";
import { gridOf, positionOf, product, shapeOf } from "../page/numbers";
import { type Content, type DisplayedTensor, type Shown, isSameContent, loadContent } from "./content";
import { Controls, isCompared, partShown } from "./controls";
import { type DisplayOptions, defaultOptions, fitted } from "./displayOptions";
import { csvOf, pngOf } from "./files";
import { elementTable } from "./elementTable";
import { ViewLayout } from "./layout";
import { Loader } from "./loader";
import { cellOf, elementOf, indexOf, navigationOf, optionsShowing } from "./navigation";
import type { PlotLibrary } from "./plotLibrary";
import { readOut } from "./readout";
import { Canceled, PageRequests } from "./requests";
import { Stage } from "./stage";
import { TableView } from "./table";
import { distanceText, statisticsSentence } from "./text";

/** The state that VS Code keeps while the view is hidden. */
export interface KeptOptions {
  options?: DisplayOptions;
  type?: string;
}

export class TensorView {
  private readonly controls = new Controls((options) => this.choose(options));
  private readonly table = new TableView();
  private readonly stage: Stage;
  private readonly layout: ViewLayout;
  private readonly requests: PageRequests;
  private loader: Loader | undefined;
  private subject: Subject | undefined;
  private tensor: DisplayedTensor | undefined;
  private content: Content | undefined;
  /** The position of the last NaN or Inf that was found. */
  private found = -1;
  /** The moment of the shown values, or of the last attempt to read them. */
  private read: Moment | undefined;

  constructor(
    root: HTMLElement,
    private readonly host: Host<ToTensor, FromTensor, KeptOptions>,
    library: PlotLibrary,
  ) {
    const zoomTo = (columns: [number, number]) => this.tensor && this.choose({ ...this.tensor.options, window: { rows: [0, 1], columns } });
    this.stage = new Stage((...cell) => this.pointed(...cell), zoomTo, library);
    this.requests = new PageRequests((message) => host.send(message));
    this.layout = new ViewLayout(root, this.controls.root, this.stage.root, {
      togglePin: () => this.togglePin(),
      refresh: () => void this.refresh(),
      useSelectedFrame: () => host.send({ kind: "useSelectedFrame" }),
      goToNonfinite: () => void this.goToNonfinite(),
      save: (format) => void this.save(format),
    });
    root.addEventListener("keydown", (event) => this.key(event));
  }

  receive(message: Extract<ToTensor, { kind: "answer" | "failed" }>): void {
    this.requests.receive(message);
  }

  showMessage(text: string): void {
    this.layout.showMessage(text);
  }

  follow(subject: Subject): void {
    const before = this.subject;
    this.subject = subject;
    this.loader ??= new Loader(this.requests, subject.expression);
    if (this.read?.moment === subject.moment) {
      this.read.place = subject.place;
    }
    if (!before && subject.kept) {
      void this.refresh(subject.kept);
    } else if (subject.session === "stopped" && subject.moment !== before?.moment && (subject.pinned || !before)) {
      void this.refresh();
    }
    this.showSubject();
  }

  private showSubject(): void {
    this.layout.showSubject(this.subject as Subject, this.read, this.content !== undefined);
  }

  private togglePin(): void {
    const { pinned, moment } = this.subject as Subject;
    this.host.send({ kind: "pin", pinned: !pinned });
    if (!pinned && this.read?.moment !== moment) {
      void this.refresh();
    }
  }

  private choose(options: DisplayOptions): void {
    if (this.tensor) {
      this.tensor.options = options;
      this.keepOptions();
      this.showControls();
      void this.refresh();
    }
  }

  private keepOptions(): void {
    this.host.keep({ options: this.tensor?.options, type: this.tensor?.info.type });
  }

  /** Reads the values of this moment, or the kept answers of an earlier one. */
  private async refresh(kept?: Moment): Promise<void> {
    const { subject, loader } = this;
    if (!subject || !loader || (subject.session !== "stopped" && !kept)) {
      return;
    }
    this.requests.cancelAll();
    this.requests.kept = kept !== undefined;
    this.requests.early = kept ? [] : subject.early;
    const { moment } = kept ?? subject;
    // The place of a moment may be received later.
    const place = () => kept?.place ?? (this.subject?.moment === moment ? this.subject.place : subject.place);
    const showRead = () => {
      this.read = { moment, place: place() };
      this.showSubject();
    };
    await this.attempt(
      () => this.load(loader, showRead),
      (message) => {
        this.clear(message);
        showRead();
      },
    );
  }

  /** Runs an action.  `failed` receives its error, unless a newer request has canceled it. */
  private async attempt(action: () => Promise<void>, failed = (message: string) => this.showMessage(message)): Promise<void> {
    try {
      await action();
    } catch (error) {
      if (!(error instanceof Canceled)) {
        failed((error as Error).message);
      }
    }
  }

  /** `showRead` is called when the shown values are those of the moment. */
  private async load(loader: Loader, showRead: () => void): Promise<void> {
    const tensor = this.tensor ?? this.learn(await loader.probe());
    const { info, options } = tensor;
    const isEmpty = product(info.shape) === 0;
    const content = isEmpty ? undefined : await loadContent(loader, tensor, (slice) => this.learn(slice) === tensor);
    if (!content) {
      if (isEmpty && this.learn(await loader.probe()) === tensor) {
        this.clear(`${info.type} has no elements.`);
        showRead();
        return;
      }
      // The value has another type than before.
      return this.load(loader, showRead);
    }
    if (this.content && isSameContent(this.content, content)) {
      showRead();
      return;
    }
    this.content = content;
    this.show(content);
    if (options.mode === "table") {
      await this.fillTable(loader, content);
    }
    showRead();
    await writeText(this.layout.distance, async () => (isCompared(options) ? distanceText(await loader.comparison(options)) : ""));
    await writeText(this.layout.statistics, async () => (info.dtype === "str" ? "" : statisticsSentence(await loader.statistics(options, "here"))));
  }

  /** The displayed tensor; a new one if the type is another one than before. */
  private learn({ type, dtype }: Slice): DisplayedTensor {
    if (this.tensor?.info.type === type) {
      return this.tensor;
    }
    const info = { type, dtype, shape: shapeOf(type) };
    const kept = this.host.state;
    const before = this.tensor?.options ?? (kept.type === type ? kept.options : undefined);
    const options = before ? fitted(before, dtype, info.shape) : defaultOptions(dtype, info.shape);
    this.tensor = { info, options };
    this.keepOptions();
    this.layout.showType(type);
    this.showControls();
    return this.tensor;
  }

  private clear(reason: string): void {
    this.content = undefined;
    this.stage.clear();
    this.layout.clear(reason);
  }

  private show(content: Content): void {
    this.showControls();
    if (content.options.mode === "table") {
      this.stage.showElement(this.table.root);
    } else {
      this.stage.show(content);
      this.readAtCursor(content);
    }
    this.layout.describe(content);
  }

  private showControls(): void {
    if (this.tensor) {
      const { info, options } = this.tensor;
      const first = this.content?.shown[0];
      const scale = first && scaleOf(first.loaded.cells.values, options.map);
      this.layout.png.disabled = options.mode === "table" || !this.content;
      this.controls.show(options, info, scale && [scale.low, scale.high]);
    }
  }

  private async fillTable(loader: Loader, content: Content): Promise<void> {
    const table = elementTable(loader, content, {
      pointed: (index) => (this.layout.readout.textContent = `[${index.join(", ")}]`),
      edited: (index, value) => this.host.send({ kind: "setElement", index, value }),
    });
    await this.table.show(table, content.options.cursor, (error) => error instanceof Canceled || this.showMessage(error.message));
  }

  /** Goes to the next NaN or Inf after the cursor, in C order. */
  private async goToNonfinite(): Promise<void> {
    const { loader, tensor } = this;
    if (!loader || !tensor || tensor.info.dtype === "str") {
      return;
    }
    const { info, options } = tensor;
    const position = positionOf(indexOf(options, ...options.cursor), info.shape);
    await this.attempt(async () => {
      const index = await loader.nonfinite((position + (this.found === position ? 1 : 0)) % Math.max(1, product(info.shape)));
      if (index === null) {
        this.showMessage("All elements are finite.");
        return;
      }
      this.found = positionOf(index, info.shape);
      this.layout.readout.textContent = `[${index.join(", ")}]`;
      const shown = { ...options, mode: options.mode === "histogram" ? ("table" as const) : options.mode };
      this.choose({ ...shown, ...optionsShowing(index, shown, info.shape) });
    });
  }

  private async save(format: FileFormat): Promise<void> {
    const { loader, tensor } = this;
    if (loader && tensor) {
      const { info, options } = tensor;
      await this.attempt(async () => {
        const data = format === "png" ? pngOf(this.stage.canvases) : await csvOf(loader, info, options, partShown({ ...options, mode: "table" }));
        this.host.send({ kind: "save", format, data });
      });
    }
  }

  private pointed(shown: Shown, channel: number, row: number, column: number, chosen: boolean): void {
    if (!this.content) {
      return;
    }
    if (chosen) {
      const { options } = this.content;
      options.cursor = elementOf(options, shown.loaded.slice.stride, row, column);
      if (this.tensor) {
        // Newer options, whose content is being loaded, have the same cursor.
        this.tensor.options.cursor = options.cursor;
      }
      this.keepOptions();
      this.stage.showCursor(options.cursor, true);
    }
    this.layout.readout.textContent = readOut(this.content, shown, channel, row, column);
  }

  /** Reads the element at the cursor again, if there is a readout. */
  private readAtCursor({ options, shown }: Content): void {
    const [first] = shown;
    if (!first || options.mode === "line" || !this.layout.readout.textContent) {
      this.layout.readout.textContent = "";
      return;
    }
    const { slice, cells } = first.loaded;
    const [row, column] = cellOf(options, slice.stride);
    const { rows, columns } = gridOf(cells.shape, options.rows, options.columns);
    if (row >= 0 && column >= 0 && row < rows && column < columns) {
      this.pointed(first, 0, row, column, false);
      this.stage.showCursor(options.cursor, true);
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
    const { options, info, shown } = this.content;
    const first = shown[0];
    const grid = first && gridOf(first.loaded.cells.shape, options.rows, options.columns);
    const navigation = navigationOf(event, options, info.shape, grid, first?.loaded.slice.stride ?? []);
    if (!navigation || ("cursor" in navigation && target.tagName !== "CANVAS")) {
      return;
    }
    event.preventDefault();
    if ("cursor" in navigation) {
      this.pointed(first, 0, ...navigation.cursor, true);
    } else {
      this.choose({ ...options, ...navigation.options });
    }
  }
}

/** Writes a text, or the error of what computes it. */
async function writeText(target: HTMLElement, text: () => Promise<string>): Promise<void> {
  try {
    target.textContent = await text();
  } catch (error) {
    if (error instanceof Canceled) {
      throw error;
    }
    target.textContent = (error as Error).message;
  }
}
