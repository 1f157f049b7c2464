// What stands at a place of the picture: its index in the whole tensor, and the value there in each part.

import { ODD } from "../color/colors";
import type { Loaded } from "./loading";
import { gridOf, numberText } from "../page/numbers";
import { Content, Shown, firstChannel } from "./stage";

const NAMES: Record<string, string> = { here: "this value", there: "other value", difference: "difference" };

/** `[0, 3]  1.5`; of a block `[0:8, 24:32]  1.5 and NaN`; of a comparison the values of all parts. */
export function readOut(content: Content, { loaded }: Shown, channel: number, row: number, column: number): string {
  const values = content.shown.map((each) => {
    const name = content.shown.length > 1 ? `${NAMES[each.part]} ` : "";
    return name + valueAt(content, each.loaded, channel, row, column);
  });
  return `[${placesOf(content, loaded, channel, row, column).join(", ")}]  ${values.join("  ·  ")}`;
}

function placesOf({ choices, known }: Content, { slice }: Loaded, channel: number, row: number, column: number): string[] {
  const { rows, columns, channels, window, mode } = choices;
  return choices.at.map((place, axis) => {
    const step = slice.stride[axis] ?? 1;
    let first: number;
    if (axis === columns) {
      first = (window?.columns[0] ?? 0) + column * step;
    } else if (axis === rows && mode !== "line") {
      first = (window?.rows[0] ?? 0) + row * step;
    } else if (axis === channels && mode === "channels") {
      first = firstChannel(choices) + channel * step;
    } else {
      return axis === channels && mode === "image" ? ":" : String(place);
    }
    const end = Math.min(first + step, known.shape[axis]);
    return slice.reduce === "stride" || end - first <= 1 ? String(first) : `${first}:${end}`;
  });
}

function valueAt({ choices }: Content, loaded: Loaded, channel: number, row: number, column: number): string {
  const { shape } = loaded.cells;
  const { mode, rows, columns, channels } = choices;
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
  const odd = ODD.filter(({ flag }) => cells.odd[cell] & flag).map(({ name }) => name);
  if (slice.reduce === "range") {
    const [low, high] = [cells.values[2 * cell], cells.values[2 * cell + 1]];
    return [...(Number.isNaN(low) ? [] : [`${numberText(low)} … ${numberText(high)}`]), ...odd].join(" and ");
  }
  const text = cells.text(cell);
  return slice.reduce === "stride" || !odd.length ? text : [...(text === "nan" ? [] : [text]), ...odd].join(" and ");
}
