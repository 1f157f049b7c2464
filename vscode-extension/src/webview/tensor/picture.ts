// A grid of cells as colors, with row and column numbers and a cursor.

import { element, themed } from "../page/elements";
import { nonfiniteStyle } from "../color/colors";
import type { Grid } from "../page/numbers";

const LEFT = 48;
const BOTTOM = 20;
/** CSS pixels for a cursor at the edge. */
const EDGE = 6;
/** The most cells with NaN or Inf that have a mark, and the size of a mark in CSS pixels. */
const MARKED = 2000;
const MARK = 7;
/** The least length of the shorter side, in CSS pixels; a picture that does not fit is scrolled. */
const LEAST = 96;
/** The greatest length of a canvas, and the least width of a strip. */
const LONGEST = 8192;
const THIN = 12;

export interface PictureCells {
  grid: Grid;
  pixel: (cell: number) => number;
  /** The flags of NaN and Inf in each cell. */
  nonfinite: Uint8Array;
  /** The index of the first row or column, and the number of the tensor's rows or columns in one cell. */
  rows: { start: number; step: number };
  columns: { start: number; step: number };
}

export class Picture {
  readonly root: HTMLElement;
  private readonly canvas = element("canvas", { tabIndex: 0, role: "img" });
  private readonly caption = element("figcaption");
  private shown: PictureCells | undefined;
  private place = { x: 0, y: 0, width: 1, height: 1 };
  private cursor: [number, number] | undefined;
  /** The pointer is over a cell, or the user has chosen it. */
  pointed: (row: number, column: number, chosen: boolean) => void = () => undefined;

  constructor(
    title: string,
    private readonly labeled: boolean,
  ) {
    this.root = element("figure", { className: "picture" }, this.caption, this.canvas);
    this.caption.textContent = title;
    this.caption.hidden = !title;
    this.canvas.setAttribute("aria-label", `${title || "Tensor"}: arrow keys move the cursor`);
    this.canvas.onpointermove = (event) => this.point(event, false);
    this.canvas.onclick = (event) => this.point(event, true);
  }

  focus(): void {
    this.canvas.focus({ preventScroll: true });
  }

  /** Draws with this size in CSS pixels; larger if the picture would be too small to read. */
  draw(picture: PictureCells, width: number, height: number): void {
    this.shown = picture;
    const [left, bottom] = this.labeled ? [LEFT, BOTTOM] : [0, 0];
    const [wide, high] = sized(picture, width - left - EDGE, height - bottom - 2 * EDGE - 1);
    this.place = { x: left || 1, y: this.labeled ? EDGE : 1, width: wide, height: high };
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round((left + wide + EDGE) * ratio);
    this.canvas.height = Math.round((high + bottom + EDGE + 1) * ratio);
    this.canvas.style.width = `${left + wide + EDGE}px`;
    this.canvas.style.height = `${high + bottom + EDGE + 1}px`;
    this.cells = cellsImage(picture);
    this.paint();
  }

  private cells: HTMLCanvasElement | undefined;

  private paint(): void {
    const context = this.canvas.getContext("2d");
    if (!context || !this.shown || !this.cells) {
      return;
    }
    const { x, y, width, height } = this.place;
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const { rows, columns } = this.shown.grid;
    // With fewer pixels than cells, cells are mixed.
    context.imageSmoothingEnabled = columns > width * ratio || rows > height * ratio;
    context.drawImage(this.cells, x, y, width, height);
    context.strokeStyle = themed("panel-border", themed("foreground", "#888"));
    context.lineWidth = 1;
    context.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
    this.paintMarks(context);
    this.paintCursor(context);
    if (this.labeled) {
      this.paintNumbers(context);
    }
  }

  /** Marks small cells with NaN or Inf. */
  private paintMarks(context: CanvasRenderingContext2D): void {
    const { grid, nonfinite } = this.shown as PictureCells;
    const { x, y, width, height } = this.place;
    const [wide, high] = [width / grid.columns, height / grid.rows];
    if (wide >= MARK && high >= MARK) {
      return;
    }
    const size = [Math.max(wide, MARK), Math.max(high, MARK)] as const;
    let marked = 0;
    for (let row = 0; row < grid.rows && marked < MARKED; row++) {
      for (let column = 0; column < grid.columns && marked < MARKED; column++) {
        const style = nonfiniteStyle(nonfinite[grid.cell(row, column)]);
        if (style) {
          marked++;
          context.fillStyle = style.color;
          context.fillRect(x + (column + 0.5) * wide - size[0] / 2, y + (row + 0.5) * high - size[1] / 2, ...size);
        }
      }
    }
  }

  private paintCursor(context: CanvasRenderingContext2D): void {
    if (!this.cursor) {
      return;
    }
    const { grid } = this.shown as PictureCells;
    const { x, y, width, height } = this.place;
    const [wide, high] = [width / grid.columns, height / grid.rows];
    const size = [Math.max(wide, 5), Math.max(high, 5)] as const;
    const corner = [x + (this.cursor[1] + 0.5) * wide - size[0] / 2, y + (this.cursor[0] + 0.5) * high - size[1] / 2] as const;
    // Light in dark: visible on every color.
    for (const [color, line] of [["#000", 4], ["#fff", 2]] as const) {
      context.strokeStyle = color;
      context.lineWidth = line;
      context.strokeRect(...corner, ...size);
    }
  }

  private paintNumbers(context: CanvasRenderingContext2D): void {
    const { grid, rows, columns } = this.shown as PictureCells;
    const { x, y, width, height } = this.place;
    context.fillStyle = themed("descriptionForeground", themed("foreground", "#888"));
    context.font = `11px ${themed("font-family", "sans-serif")}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const row of ticks(grid.rows, height / 28)) {
      context.fillText(numberLabel(rows.start + row * rows.step), x - 5, y + ((row + 0.5) * height) / grid.rows);
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const column of ticks(grid.columns, width / 56)) {
      const text = numberLabel(columns.start + column * columns.step);
      context.fillText(text, x + ((column + 0.5) * width) / grid.columns, y + height + 5);
    }
  }

  point(event: { offsetX: number; offsetY: number }, chosen: boolean): void {
    const { x, y, width, height } = this.place;
    if (!this.shown) {
      return;
    }
    const { grid } = this.shown;
    const column = Math.floor(((event.offsetX - x) / width) * grid.columns);
    const row = Math.floor(((event.offsetY - y) / height) * grid.rows);
    if (row >= 0 && column >= 0 && row < grid.rows && column < grid.columns) {
      this.pointed(...this.marked(row, column), chosen);
    }
  }

  /** The cell whose mark covers this cell; else this cell. */
  private marked(row: number, column: number): [number, number] {
    const { grid, nonfinite } = this.shown as PictureCells;
    const [down, right] = [
      Math.floor((MARK / 2 / this.place.height) * grid.rows),
      Math.floor((MARK / 2 / this.place.width) * grid.columns),
    ];
    let found: [number, number] = [row, column];
    let nearest = nonfinite[grid.cell(row, column)] ? 0 : Infinity;
    for (let near = Math.max(0, row - down); near <= Math.min(grid.rows - 1, row + down); near++) {
      for (let beside = Math.max(0, column - right); beside <= Math.min(grid.columns - 1, column + right); beside++) {
        const distance = Math.hypot(near - row, beside - column);
        if (distance < nearest && nonfinite[grid.cell(near, beside)]) {
          [found, nearest] = [[near, beside], distance];
        }
      }
    }
    return found;
  }

  /** Shows the cursor at an element of the whole tensor, if the picture includes it.  `reveal`: scrolls to it. */
  showCursor(row: number, column: number, reveal: boolean): void {
    const { grid, rows, columns } = this.shown as PictureCells;
    const cell: [number, number] = [Math.floor((row - rows.start) / rows.step), Math.floor((column - columns.start) / columns.step)];
    const seen = cell[0] >= 0 && cell[1] >= 0 && cell[0] < grid.rows && cell[1] < grid.columns;
    this.cursor = seen ? cell : undefined;
    this.paint();
    if (seen && reveal) {
      this.scrollTo(...cell);
    }
  }

  /** Scrolls the pictures until a cell is visible. */
  private scrollTo(row: number, column: number): void {
    const scrolled = this.root.parentElement as HTMLElement;
    const [view, box] = [scrolled.getBoundingClientRect(), this.canvas.getBoundingClientRect()];
    const { grid } = this.shown as PictureCells;
    const x = box.left + this.place.x + ((column + 0.5) * this.place.width) / grid.columns - view.left;
    const y = box.top + this.place.y + ((row + 0.5) * this.place.height) / grid.rows - view.top;
    scrolled.scrollLeft += beyond(x, scrolled.clientWidth);
    scrolled.scrollTop += beyond(y, scrolled.clientHeight);
  }

  /** The canvas as it is drawn. */
  get drawn(): HTMLCanvasElement {
    return this.canvas;
  }
}

/** Width and height: elements are square, and the shorter side is at least `LEAST` long. */
export function sized({ grid, rows, columns }: Pick<PictureCells, "grid" | "rows" | "columns">, width: number, height: number): [number, number] {
  const [down, across] = [grid.rows * rows.step, grid.columns * columns.step];
  const fits = Math.min(width / across, height / down);
  const least = Math.min(LEAST / Math.min(down, across), LONGEST / Math.max(down, across));
  const side = Math.max(fits, least);
  return [Math.max(THIN, Math.floor(side * across)), Math.max(THIN, Math.floor(side * down))];
}

/** The distance of a position from a view with a margin. */
function beyond(place: number, length: number): number {
  const margin = Math.min(40, length / 4);
  return place < margin ? place - margin : place > length - margin ? place - length + margin : 0;
}

function cellsImage({ grid, pixel }: PictureCells): HTMLCanvasElement {
  const canvas = element("canvas", { width: grid.columns, height: grid.rows });
  const pixels = new Uint32Array(grid.columns * grid.rows);
  for (let row = 0, next = 0; row < grid.rows; row++) {
    for (let column = 0; column < grid.columns; column++) {
      pixels[next++] = pixel(grid.cell(row, column));
    }
  }
  const image = new ImageData(new Uint8ClampedArray(pixels.buffer), grid.columns, grid.rows);
  canvas.getContext("2d")?.putImageData(image, 0, 0);
  return canvas;
}

/** At most `most` round numbers from 0. */
function ticks(count: number, most: number): number[] {
  const least = count / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least) as number;
  return Array.from({ length: Math.ceil(count / step) }, (_, index) => index * step);
}

const SHORT_NUMBER = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });

function numberLabel(index: number): string {
  return index < 100_000 ? String(index) : SHORT_NUMBER.format(index);
}
