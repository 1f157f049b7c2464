// One, three or four channels as colors.

import type { DisplayOptions } from "./displayOptions";
import { nonfinitePixel, scaleOf } from "../color/colors";
import { Cells, gridOf } from "../page/numbers";

const OPAQUE = 255;

/** The pixel of a cell of the first channel.  Other numbers than bytes are scaled to their range. */
export function imagePixels(cells: Cells, options: DisplayOptions, dtype: string): (cell: number) => number {
  const { low, high } = rangeOf(cells, options, dtype);
  const count = options.channels < 0 ? 1 : (cells.shape[options.channels] ?? 1);
  const at = (channel: number) => cells.shape.map((_, axis) => (axis === options.channels ? channel : 0));
  const first = gridOf(cells.shape, options.rows, options.columns, at(0)).cell(0, 0);
  const offsets = Array.from({ length: count }, (_, channel) => gridOf(cells.shape, options.rows, options.columns, at(channel)).cell(0, 0) - first);
  const byte = (cell: number) => Math.max(0, Math.min(OPAQUE, Math.round(((cells.values[cell] - low) / (high - low || 1)) * OPAQUE)));
  return (cell) => {
    const nonfinite = nonfinitePixel(offsets.reduce((flags, offset) => flags | cells.nonfinite[cell + offset], 0));
    if (nonfinite !== undefined) {
      return nonfinite;
    }
    const [red, green, blue, alpha] = offsets.map((offset) => byte(cell + offset)) as [number, number?, number?, number?];
    return pixel(red, green ?? red, blue ?? red, alpha ?? OPAQUE);
  };
}

/** 0 to 255 for bytes, 0 to 1 for numbers in that range, else from the least to the greatest. */
function rangeOf(cells: Cells, { range }: DisplayOptions, dtype: string): { low: number; high: number } {
  if (range) {
    return { low: range[0], high: range[1] };
  }
  if (dtype === "u8") {
    return { low: 0, high: 255 };
  }
  const scale = scaleOf(cells.values, "even");
  return scale.low >= 0 && scale.high <= 1 ? { low: 0, high: 1 } : scale;
}

function pixel(red: number, green: number, blue: number, alpha: number): number {
  return ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
