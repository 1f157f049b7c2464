// The text of a cell: its index in the whole tensor, and the value of each part.

import { NONFINITE } from "../color/colors";
import type { Loaded } from "./loader";
import { gridOf, numberText } from "../page/numbers";
import { type Content, PART_NAMES, type Shown } from "./content";
import { firstChannel } from "./stage";

/** `[0, 3]  1.5`; of a block `[0:8, 24:32]  1.5 and NaN`; of a comparison the values of all parts. */
export function readOut(content: Content, { loaded }: Shown, channel: number, row: number, column: number): string {
  const values = content.shown.map((each) => {
    const name = content.shown.length > 1 ? `${PART_NAMES[each.part]} ` : "";
    return name + cellValues(content, each.loaded, channel, row, column);
  });
  return `[${placesOf(content, loaded, channel, row, column).join(", ")}]  ${values.join("  ·  ")}`;
}

function placesOf({ options, info }: Content, { slice }: Loaded, channel: number, row: number, column: number): string[] {
  const { rows, columns, channels, window, mode } = options;
  return options.at.map((place, axis) => {
    const step = slice.stride[axis] ?? 1;
    let first: number;
    if (axis === columns) {
      first = (window?.columns[0] ?? 0) + column * step;
    } else if (axis === rows && mode !== "line") {
      first = (window?.rows[0] ?? 0) + row * step;
    } else if (axis === channels && mode === "channels") {
      first = firstChannel(options) + channel * step;
    } else {
      return axis === channels && mode === "image" ? ":" : String(place);
    }
    const end = Math.min(first + step, info.shape[axis]);
    return slice.reduce === "stride" || end - first <= 1 ? String(first) : `${first}:${end}`;
  });
}

function cellValues({ options }: Content, loaded: Loaded, channel: number, row: number, column: number): string {
  const { shape } = loaded.cells;
  const { mode, rows, columns, channels } = options;
  if (mode === "line") {
    return cellText(loaded, column);
  }
  const colors = mode === "image" && channels >= 0 ? (shape[channels] ?? 1) : 1;
  return Array.from({ length: colors }, (_, color) => {
    const at = shape.map((__, axis) => (axis === channels ? (mode === "image" ? color : channel) : 0));
    return cellText(loaded, gridOf(shape, rows, columns, at).cell(row, column));
  }).join(", ");
}

function cellText({ slice, cells }: Loaded, cell: number): string {
  const nonfinite = NONFINITE.filter(({ flag }) => cells.nonfinite[cell] & flag).map(({ name }) => name);
  if (slice.reduce === "range") {
    const [low, high] = [cells.values[2 * cell], cells.values[2 * cell + 1]];
    return [...(Number.isNaN(low) ? [] : [`${numberText(low)} … ${numberText(high)}`]), ...nonfinite].join(" and ");
  }
  const text = cells.text(cell);
  return slice.reduce === "stride" || !nonfinite.length ? text : [...(text === "nan" ? [] : [text]), ...nonfinite].join(" and ");
}
