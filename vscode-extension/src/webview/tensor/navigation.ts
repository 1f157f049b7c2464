// Navigation with keys: arrows move the cursor, page keys the slice, + and - zoom.

import type { DisplayOptions } from "./displayOptions";
import { CHANNELS, axesShown } from "./loader";
import type { Grid } from "../page/numbers";

/** The effect of a key: another cell at the cursor, or other options. */
export type Navigation = { cursor: [number, number] } | { options: Partial<DisplayOptions> };

const ARROWS: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
/** Rows and columns, or points of a line, around a found element. */
const NEAR = 64;
const NEAR_LINE = 512;
/** The fewest rows or columns of a zoomed picture. */
const FEWEST = 4;

export function navigationOf(
  event: KeyboardEvent,
  options: DisplayOptions,
  shape: readonly number[],
  grid: Grid | undefined,
  steps: readonly number[],
): Navigation | undefined {
  if (event.ctrlKey || event.metaKey || event.altKey) {
    return undefined;
  }
  const arrow = ARROWS[event.key];
  if (arrow && grid) {
    const many = event.shiftKey ? 10 : 1;
    const [row, column] = cellOf(options, steps);
    return { cursor: [clamp(row + arrow[0] * many, grid.rows), clamp(column + arrow[1] * many, grid.columns)] };
  }
  if (event.key === "PageUp" || event.key === "PageDown") {
    return turned(options, shape, event.key === "PageDown" ? 1 : -1, event.shiftKey);
  }
  if (event.key === "0" && options.window) {
    return { options: { window: undefined } };
  }
  if ((event.key === "+" || event.key === "=" || event.key === "-") && grid && options.mode !== "line") {
    return zoomed(options, shape, event.key === "-" ? 2 : 0.5);
  }
  return undefined;
}

/** The next or previous index of the last axis that is not shown; with Shift, of the one before it. */
function turned(options: DisplayOptions, shape: readonly number[], by: number, outer: boolean): Navigation | undefined {
  const channels = options.mode === "channels";
  const shown = options.mode === "line" ? [options.columns] : axesShown(options).filter((axis) => !channels || axis !== options.channels);
  const others = shape.map((_, axis) => axis).filter((axis) => !shown.includes(axis) && shape[axis] > 1);
  const axis = others.at(outer ? -2 : -1);
  if (axis === undefined) {
    return undefined;
  }
  const step = channels && axis === options.channels ? CHANNELS : 1;
  const at = options.at.map((place, number) => (number === axis ? clamp(place + by * step, shape[axis]) : place));
  return { options: { at } };
}

/** Half or twice as many rows and columns, with the cursor in the middle. */
function zoomed(options: DisplayOptions, shape: readonly number[], by: number): Navigation | undefined {
  const one = (axis: number, window: [number, number] | undefined, cursor: number): [number, number] => {
    const size = shape[axis] ?? 1;
    const [start, stop] = window ?? [0, size];
    const length = Math.min(size, Math.max(Math.min(FEWEST, size), Math.round((stop - start) * by)));
    const from = Math.max(0, Math.min(size - length, Math.round(cursor - length / 2)));
    return [from, from + length];
  };
  const rows = one(options.rows, options.window?.rows, options.cursor[0]);
  const columns = one(options.columns, options.window?.columns, options.cursor[1]);
  const all = rows[1] - rows[0] === (shape[options.rows] ?? 1) && columns[1] - columns[0] === (shape[options.columns] ?? 1);
  return { options: { window: all ? undefined : { rows, columns } } };
}

/** The options that show an element: its slice, zoomed so that it has its own cell at the cursor. */
export function optionsShowing(index: readonly number[], options: DisplayOptions, shape: readonly number[]): Partial<DisplayOptions> {
  const { rows, columns, channels, mode } = options;
  const axes = mode === "line" ? [columns] : axesShown(options).filter((axis) => axis !== channels || mode === "channels");
  const at = options.at.map((place, axis) => (axes.includes(axis) && axis !== channels ? place : (index[axis] ?? 0)));
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

/** The cell of the element at the cursor. */
export function cellOf({ cursor, window, rows, columns }: DisplayOptions, steps: readonly number[]): [number, number] {
  const cell = (place: number, start: number | undefined, axis: number) => Math.floor((place - (start ?? 0)) / (steps[axis] ?? 1));
  return [cell(cursor[0], window?.rows[0], rows), cell(cursor[1], window?.columns[0], columns)];
}

/** The first element of a cell, by its row and column in the whole tensor. */
export function elementOf({ window, rows, columns }: DisplayOptions, steps: readonly number[], row: number, column: number): [number, number] {
  return [(window?.rows[0] ?? 0) + row * (steps[rows] ?? 1), (window?.columns[0] ?? 0) + column * (steps[columns] ?? 1)];
}

/** The index of the element at a row and column. */
export function indexOf({ at, rows, columns, mode }: DisplayOptions, row: number, column: number): number[] {
  return at.map((place, axis) => (axis === rows && mode !== "line" ? row : axis === columns ? column : place));
}

function clamp(place: number, size: number): number {
  return Math.max(0, Math.min(size - 1, place));
}
