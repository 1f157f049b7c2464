// A small picture of a tensor.

import { painter, scaleOf } from "../color/colors";
import { element } from "../page/elements";
import { cellsOf } from "../page/numbers";
import type { Plane } from "./answer";

/** CSS pixels of the longest and of the shortest side. */
const LONG = 72;
const SHORT = 8;

export function thumbnail({ of, shape, elements, data, flags }: Plane, name: string): HTMLCanvasElement {
  const [rows, columns] = shape;
  const cells = cellsOf({ type: "", dtype: elements, sourceShape: of, stride: [], shape, reduce: "absmax", data, elements, flags });
  const paint = painter(scaleOf(cells.values, "even"));
  const pixels = Uint32Array.from({ length: rows * columns }, (_, cell) => paint(cells.values[cell], cells.nonfinite[cell]));
  const canvas = element("canvas", { width: columns, height: rows, role: "img", label: `Picture of ${name}`, className: "thumbnail" });
  canvas.getContext("2d")?.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), columns, rows), 0, 0);
  const side = LONG / Math.max(...of);
  canvas.style.width = `${Math.max(SHORT, side * of[1])}px`;
  canvas.style.height = `${Math.max(SHORT, side * of[0])}px`;
  return canvas;
}
