// Files for the user: the shown slice as CSV, the picture as PNG.

import type { DisplayOptions, TensorInfo, Part } from "./displayOptions";
import { element, themed } from "../page/elements";
import type { Loader } from "./loader";
import { gridOf } from "../page/numbers";

/** Elements of the largest CSV file; larger slices can be saved as .npy. */
const MOST = 1 << 22;
/** Elements of one request. */
const PAGE = 1 << 14;
const GAP = 12;

/** The shown rows and columns, one line for each row; of one axis, one line for each element.  Throws if there are more than `MOST`. */
export async function csvOf(loader: Loader, { dtype, shape }: TensorInfo, options: DisplayOptions, part: Part): Promise<string> {
  const along = options.mode === "line" || options.rows < 0;
  const [rowAxis, columnAxis] = along ? [options.columns, -1] : [options.rows, options.columns];
  const [rows, columns] = [shape[rowAxis] ?? 1, shape[columnAxis] ?? 1];
  if (rows * columns > MOST) {
    throw new Error(`the slice has ${(rows * columns).toLocaleString("en")} elements: a CSV file can contain at most ${MOST.toLocaleString("en")}. Save the value as .npy instead.`);
  }
  const lines: string[] = [];
  const [wide, high] = [Math.min(columns, PAGE), Math.max(1, Math.floor(PAGE / columns))];
  for (let row = 0; row < rows; row += high) {
    const below = Math.min(rows, row + high);
    const parts: string[][] = Array.from({ length: below - row }, () => []);
    for (let column = 0; column < columns; column += wide) {
      const { cells } = await loader.page({ ...options, rows: rowAxis, columns: columnAxis }, part, dtype, [row, below], [column, Math.min(columns, column + wide)]);
      const grid = gridOf(cells.shape, rowAxis, columnAxis);
      parts.forEach((fields, line) => {
        for (let place = 0; place < grid.columns; place++) {
          fields.push(csvField(cells.text(grid.cell(line, place))));
        }
      });
    }
    lines.push(...parts.map((fields) => fields.join(",")));
  }
  return `${lines.join("\n")}\n`;
}

function csvField(text: string): string {
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** The canvases beside each other, on the background of the theme, as base64. */
export function pngOf(canvases: readonly HTMLCanvasElement[]): string {
  const gap = GAP * (window.devicePixelRatio || 1);
  const width = canvases.reduce((sum, each) => sum + each.width + gap, gap);
  const height = Math.max(...canvases.map((each) => each.height)) + 2 * gap;
  const whole = element("canvas", { width, height });
  const context = whole.getContext("2d") as CanvasRenderingContext2D;
  context.fillStyle = themed("editor-background", "#fff");
  context.fillRect(0, 0, width, height);
  let x = gap;
  for (const each of canvases) {
    context.drawImage(each, x, gap);
    x += each.width + gap;
  }
  return whole.toDataURL("image/png").replace(/^data:image\/png;base64,/, "");
}
