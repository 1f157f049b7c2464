// The colors of runs, from the theme.

import { themed } from "../page/elements";

const COLORS: readonly (readonly [string, string])[] = [
  ["charts-blue", "#3794ff"],
  ["charts-orange", "#d18616"],
  ["charts-green", "#89d185"],
  ["charts-purple", "#b180d7"],
  ["charts-red", "#f14c4c"],
  ["charts-yellow", "#cca700"],
];

/** The color of a run by its number, from 1. */
export function colorOf(run: number): string {
  const [name, fallback] = COLORS[(run - 1) % COLORS.length];
  return themed(name, fallback);
}
