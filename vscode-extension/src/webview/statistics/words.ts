// How a value is told in words and figures.

import type { Statistics } from "../../tensor/messages";

export interface Series {
  mean: (number | null)[];
  nonfinite: (number | null)[];
}

export interface Value {
  frame: number;
  name: string;
  shortName: string;
  type: string;
  line: number;
  rank: number;
  why: string;
  stats?: Statistics;
  series?: Series;
}

/** Four significant digits. */
export function short(number: number | null): string {
  if (number === null) {
    return "–";
  }
  const text = Number(number.toPrecision(4));
  return Math.abs(number) >= 1e6 || (number !== 0 && Math.abs(number) < 1e-4) ? text.toExponential() : String(text);
}

/** `odd`: with the counts of what is not finite. */
export function statisticsText(stats: Statistics | undefined, odd = true): string {
  if (!stats) {
    return "statistics were not logged";
  }
  const counts = Object.entries({ nan: stats.nan, "+inf": stats.posinf, "-inf": stats.neginf }).filter(([, count]) => odd && count);
  if (stats.min === null) {
    return stats.count === 0 ? "empty" : counts.length ? joined(counts) : "no finite element";
  }
  if (stats.count === 1) {
    return short(stats.min);
  }
  return joined([...counts, ...Object.entries({ min: stats.min, mean: stats.mean, max: stats.max, std: stats.std })]);
}

/** A name and its number are on one line. */
function joined(figures: [string, number | null][]): string {
  return figures.map(([name, number]) => `${name}\u00a0${short(number)}`).join(" ");
}

export function wordsOf(value: Value): string {
  return [value.type, value.why, statisticsText(value.stats, !value.why)].filter((each) => each).join(", ");
}
