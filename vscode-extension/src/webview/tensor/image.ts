// One, three or four channels as the colors that they stand for.

import type { Choices } from "./choices";
import { ODD, scaleOf } from "../color/colors";
import { Cells, gridOf } from "../page/numbers";

const OPAQUE = 255;

/** The pixel of a cell of the first channel.  Bytes are taken as they are, other numbers over their range. */
export function imagePixels(cells: Cells, choices: Choices, dtype: string): (cell: number) => number {
  const { low, high } = rangeOf(cells, choices, dtype);
  const count = choices.channels < 0 ? 1 : (cells.shape[choices.channels] ?? 1);
  const at = (channel: number) => cells.shape.map((_, axis) => (axis === choices.channels ? channel : 0));
  const first = gridOf(cells.shape, choices.rows, choices.columns, at(0)).cell(0, 0);
  const offsets = Array.from({ length: count }, (_, channel) => gridOf(cells.shape, choices.rows, choices.columns, at(channel)).cell(0, 0) - first);
  const byte = (cell: number) => Math.max(0, Math.min(OPAQUE, Math.round(((cells.values[cell] - low) / (high - low || 1)) * OPAQUE)));
  return (cell) => {
    const odd = offsets.reduce((flags, offset) => flags | cells.odd[cell + offset], 0);
    if (odd) {
      const { color } = ODD.find(({ flag }) => odd & flag) as { color: string };
      const [red, green, blue] = [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16)) as [number, number, number];
      return pixel(red, green, blue, OPAQUE);
    }
    const [red, green, blue, alpha] = offsets.map((offset) => byte(cell + offset)) as [number, number?, number?, number?];
    return pixel(red, green ?? red, blue ?? red, alpha ?? OPAQUE);
  };
}

/** 0 to 255 for bytes, 0 to 1 for numbers between these, else from the least to the greatest. */
function rangeOf(cells: Cells, { range }: Choices, dtype: string): { low: number; high: number } {
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
