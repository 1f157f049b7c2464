// Elements as a table of any size: only visible rows and columns are requested and created.

import { element } from "../page/elements";
import { nonfiniteStyle } from "../color/colors";
import type { Cells, Grid } from "../page/numbers";

const ROW = 22;
const COLUMN = 116;
const HEAD = 64;
/** The pixels up to which a browser scrolls exactly. */
const LONGEST = 8_000_000;

export interface TablePage {
  rows: [number, number];
  columns: [number, number];
}

export interface Table {
  rows: number;
  columns: number;
  /** The cells of a page, and their grid. */
  page(page: TablePage): Promise<{ cells: Cells; grid: Grid }>;
  pointed(row: number, column: number): void;
  /** undefined if elements cannot be set. */
  edit: ((row: number, column: number, text: string) => void) | undefined;
}

export class TableView {
  readonly root = element("div", { className: "table", role: "grid", tabIndex: 0, label: "Elements" });
  private readonly space = element("div", { className: "space" });
  private readonly shown = element("div", { className: "shown" });
  private table: Table | undefined;
  private known: { page: TablePage; cells: Cells; grid: Grid } | undefined;
  private turn = 0;
  private cursor: [number, number] = [0, 0];
  private failed: (error: Error) => void = () => undefined;

  constructor() {
    this.root.append(this.space, this.shown);
    this.root.onscroll = () => void this.update();
    this.root.onkeydown = (event) => this.key(event);
  }

  /** Shows a table.  Resolves when its visible part is loaded. */
  async show(table: Table, cursor: [number, number], failed: (error: Error) => void): Promise<void> {
    Object.assign(this, { table, failed, known: undefined });
    const before = this.cursor;
    this.cursor = [Math.min(cursor[0], table.rows - 1), Math.min(cursor[1], table.columns - 1)];
    this.space.style.height = `${Math.min(LONGEST, (table.rows + 1) * ROW)}px`;
    this.space.style.width = `${Math.min(LONGEST, HEAD + table.columns * COLUMN)}px`;
    this.root.setAttribute("aria-rowcount", String(table.rows));
    this.root.setAttribute("aria-colcount", String(table.columns));
    if (before.join() !== this.cursor.join()) {
      this.scrollToCursor();
    }
    await this.update();
  }

  private async update(): Promise<void> {
    const table = this.table;
    if (!table) {
      return;
    }
    const turn = ++this.turn;
    const page = {
      rows: range(this.root.scrollTop, this.root.clientHeight - ROW, this.space.offsetHeight, table.rows, ROW),
      columns: range(this.root.scrollLeft, this.root.clientWidth - HEAD, this.space.offsetWidth, table.columns, COLUMN),
    };
    if (this.known && within(page, this.known.page)) {
      this.paint(page);
      return;
    }
    const wider = { rows: widened(page.rows, table.rows), columns: widened(page.columns, table.columns) };
    try {
      const found = await table.page(wider);
      if (turn === this.turn) {
        this.known = { page: wider, ...found };
        this.paint(page);
      }
    } catch (error) {
      this.failed(error as Error);
    }
  }

  private paint(page: TablePage): void {
    const { cells, grid, page: known } = this.known as { page: TablePage; cells: Cells; grid: Grid };
    const head = element("div", { className: "row head", role: "row" }, element("span", { role: "columnheader" }));
    for (let column = page.columns[0]; column < page.columns[1]; column++) {
      head.append(element("span", { role: "columnheader" }, String(column)));
    }
    const rows = [head];
    for (let row = page.rows[0]; row < page.rows[1]; row++) {
      const line = element("div", { className: "row", role: "row" }, element("span", { role: "rowheader" }, String(row)));
      for (let column = page.columns[0]; column < page.columns[1]; column++) {
        line.append(this.cell(row, column, cells, grid.cell(row - known.rows[0], column - known.columns[0])));
      }
      rows.push(line);
    }
    this.shown.replaceChildren(...rows);
    this.shown.style.transform = `translate(${this.root.scrollLeft}px, ${this.root.scrollTop}px)`;
  }

  private cell(row: number, column: number, cells: Cells, index: number): HTMLElement {
    const text = cells.text(index);
    const made = element("span", { role: "gridcell", title: text, className: "cell" }, text);
    const style = nonfiniteStyle(cells.nonfinite[index])?.style;
    if (style) {
      made.classList.add("nonfinite", style);
    }
    const here = row === this.cursor[0] && column === this.cursor[1];
    made.setAttribute("aria-selected", String(here));
    made.onclick = () => this.go(row, column);
    made.ondblclick = () => this.edit();
    return made;
  }

  private go(row: number, column: number): void {
    const { rows, columns } = this.table as Table;
    this.cursor = [Math.max(0, Math.min(row, rows - 1)), Math.max(0, Math.min(column, columns - 1))];
    this.scrollToCursor();
    this.table?.pointed(...this.cursor);
    void this.update();
  }

  private scrollToCursor(): void {
    const { rows, columns } = this.table as Table;
    this.root.scrollTop = into(this.root.scrollTop, this.cursor[0], this.root.clientHeight - ROW, this.space.offsetHeight, rows, ROW);
    this.root.scrollLeft = into(this.root.scrollLeft, this.cursor[1], this.root.clientWidth - HEAD, this.space.offsetWidth, columns, COLUMN);
  }

  private key(event: KeyboardEvent): void {
    const [row, column] = this.cursor;
    const moves: Record<string, [number, number]> = {
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      Home: [row, 0],
      End: [row, Infinity],
    };
    const move = event.target === this.root ? moves[event.key] : undefined;
    if (move) {
      event.preventDefault();
      event.stopPropagation();
      this.go(...move);
    } else if (event.target === this.root && (event.key === "Enter" || event.key === "F2")) {
      event.preventDefault();
      this.edit();
    }
  }

  /** An input in place of the cell at the cursor. */
  private edit(): void {
    const cell = this.shown.querySelector<HTMLElement>('[aria-selected="true"]');
    const set = this.table?.edit;
    if (!cell || !set) {
      return;
    }
    const [row, column] = this.cursor;
    const input = element("input", { value: cell.textContent ?? "", label: `New value at row ${row}, column ${column}` });
    cell.replaceChildren(input);
    input.select();
    const done = (text: string | undefined) => {
      input.onblur = null;
      if (text !== undefined) {
        set(row, column, text);
      }
      void this.update();
      this.root.focus();
    };
    input.onblur = () => done(undefined);
    input.onkeydown = (event) => {
      event.stopPropagation();
      if (event.key === "Enter" || event.key === "Escape") {
        done(event.key === "Enter" ? input.value : undefined);
      }
    };
  }
}

/** The first visible row or column, and the one after the last. */
function range(scrolled: number, seen: number, space: number, count: number, size: number): [number, number] {
  const most = Math.max(1, Math.floor(seen / size));
  const exact = space < LONGEST;
  const first = exact ? Math.floor(scrolled / size) : Math.round((scrolled / Math.max(1, space - seen - size)) * Math.max(0, count - most));
  const start = Math.max(0, Math.min(first, count - most));
  return [start, Math.min(count, start + most + 1)];
}

/** The scroll position at which a row or column is visible. */
function into(scrolled: number, place: number, seen: number, space: number, count: number, size: number): number {
  const [first, end] = range(scrolled, seen, space, count, size);
  if (place >= first && place < end - 1) {
    return scrolled;
  }
  const wanted = place < first ? place : place - (end - first) + 2;
  return space < LONGEST ? wanted * size : (wanted / Math.max(1, count - (end - first - 1))) * (space - seen - size);
}

function within(page: TablePage, known: TablePage): boolean {
  return (["rows", "columns"] as const).every((axis) => page[axis][0] >= known[axis][0] && page[axis][1] <= known[axis][1]);
}

/** Half a page more on each side: a short scroll requests nothing. */
function widened([start, end]: [number, number], count: number): [number, number] {
  const more = Math.ceil((end - start) / 2);
  return [Math.max(0, start - more), Math.min(count, end + more)];
}
