// Keys: arrows move the cursor, page keys the slice, + and - zoom.

import type { Choices } from "./choices";
import { CHANNELS, axesShown } from "./loading";
import type { Grid } from "../page/numbers";

export type Key = { kind: "cursor"; cursor: [number, number] } | { kind: "choices"; choices: Partial<Choices> };

const ARROWS: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
/** Rows and columns, and places of a line, around an element that was searched for. */
const NEAR = 64;
const NEAR_LINE = 512;
/** Rows or columns from which zooming in makes no sense any more. */
const FEW = 4;

export function movement(
  event: KeyboardEvent,
  choices: Choices,
  shape: readonly number[],
  grid: Grid | undefined,
  steps: readonly number[],
): Key | undefined {
  if (event.ctrlKey || event.metaKey || event.altKey) {
    return undefined;
  }
  const arrow = ARROWS[event.key];
  if (arrow && grid) {
    const many = event.shiftKey ? 10 : 1;
    const [row, column] = cellOf(choices, steps);
    return { kind: "cursor", cursor: [clamp(row + arrow[0] * many, grid.rows), clamp(column + arrow[1] * many, grid.columns)] };
  }
  if (event.key === "PageUp" || event.key === "PageDown") {
    return turned(choices, shape, event.key === "PageDown" ? 1 : -1, event.shiftKey);
  }
  if (event.key === "0" && choices.window) {
    return { kind: "choices", choices: { window: undefined } };
  }
  if ((event.key === "+" || event.key === "=" || event.key === "-") && grid && choices.mode !== "line") {
    return zoomed(choices, shape, event.key === "-" ? 2 : 0.5);
  }
  return undefined;
}

/** The next or previous place of the last axis that is not shown; with Shift of the one before it. */
function turned(choices: Choices, shape: readonly number[], by: number, outer: boolean): Key | undefined {
  const channels = choices.mode === "channels";
  const shown = choices.mode === "line" ? [choices.columns] : axesShown(choices).filter((axis) => !channels || axis !== choices.channels);
  const others = shape.map((_, axis) => axis).filter((axis) => !shown.includes(axis) && shape[axis] > 1);
  const axis = others.at(outer ? -2 : -1);
  if (axis === undefined) {
    return undefined;
  }
  const step = channels && axis === choices.channels ? CHANNELS : 1;
  const at = choices.at.map((place, number) => (number === axis ? clamp(place + by * step, shape[axis]) : place));
  return { kind: "choices", choices: { at } };
}

/** Half or twice as many rows and columns, with the element at the cursor in the middle. */
function zoomed(choices: Choices, shape: readonly number[], by: number): Key | undefined {
  const one = (axis: number, window: [number, number] | undefined, cursor: number): [number, number] => {
    const size = shape[axis] ?? 1;
    const [start, stop] = window ?? [0, size];
    const length = Math.min(size, Math.max(Math.min(FEW, size), Math.round((stop - start) * by)));
    const from = Math.max(0, Math.min(size - length, Math.round(cursor - length / 2)));
    return [from, from + length];
  };
  const rows = one(choices.rows, choices.window?.rows, choices.cursor[0]);
  const columns = one(choices.columns, choices.window?.columns, choices.cursor[1]);
  const all = rows[1] - rows[0] === (shape[choices.rows] ?? 1) && columns[1] - columns[0] === (shape[choices.columns] ?? 1);
  return { kind: "choices", choices: { window: all ? undefined : { rows, columns } } };
}

/** What shows an element: its slice, with the cursor there, and so near that it is a cell of its own. */
export function shownAt(index: readonly number[], choices: Choices, shape: readonly number[]): Partial<Choices> {
  const { rows, columns, channels, mode } = choices;
  const axes = mode === "line" ? [columns] : axesShown(choices).filter((axis) => axis !== channels || mode === "channels");
  const at = choices.at.map((place, axis) => (axes.includes(axis) && axis !== channels ? place : (index[axis] ?? 0)));
  const cursor: [number, number] = [index[rows] ?? 0, index[columns] ?? 0];
  const near = (axis: number, place: number, many: number): [number, number] => {
    const size = shape[axis] ?? 1;
    const from = Math.max(0, Math.min(size - many, place - many / 2));
    return [from, Math.min(size, from + many)];
  };
  if (mode === "line") {
    return { at, cursor, window: (shape[columns] ?? 1) > NEAR_LINE ? { rows: [0, 1], columns: near(columns, cursor[1], NEAR_LINE) } : undefined };
  }
  const large = (shape[rows] ?? 1) > NEAR || (shape[columns] ?? 1) > NEAR;
  return { at, cursor, window: large ? { rows: near(rows, cursor[0], NEAR), columns: near(columns, cursor[1], NEAR) } : undefined };
}

/** The cell that the element at the cursor is in. */
export function cellOf({ cursor, window, rows, columns }: Choices, steps: readonly number[]): [number, number] {
  const cell = (place: number, start: number | undefined, axis: number) => Math.floor((place - (start ?? 0)) / (steps[axis] ?? 1));
  return [cell(cursor[0], window?.rows[0], rows), cell(cursor[1], window?.columns[0], columns)];
}

function clamp(place: number, size: number): number {
  return Math.max(0, Math.min(size - 1, place));
}
