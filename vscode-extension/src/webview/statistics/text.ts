// Statistics as text.

import type { Statistics } from "../../tensor/messages";

/** The statistics of a value at each of its visits, the current one last. */
export interface Series {
  min: (number | null)[];
  max: (number | null)[];
  mean: (number | null)[];
  nonfinite: (number | null)[];
  /** The moments of the visits, in executed statements; null for those that have left the history. */
  moments: (number | null)[];
  /** The steps of the run. */
  steps?: number[];
}

export interface NearbyValue {
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

/** `counts`: with the numbers of NaN and Inf. */
export function statisticsText(stats: Statistics | undefined, counts = true): string {
  if (!stats) {
    return "statistics were not logged";
  }
  const nonfinite = Object.entries({ nan: stats.nan, "+inf": stats.posinf, "-inf": stats.neginf }).filter(([, count]) => counts && count);
  if (stats.min === null) {
    return stats.count === 0 ? "empty" : nonfinite.length ? joined(nonfinite) : "no finite element";
  }
  if (stats.count === 1) {
    return short(stats.min);
  }
  return joined([...nonfinite, ...Object.entries({ min: stats.min, mean: stats.mean, max: stats.max, std: stats.std })]);
}

/** Names with numbers; no line break separates a name from its number. */
function joined(figures: [string, number | null][]): string {
  return figures.map(([name, number]) => `${name}\u00a0${short(number)}`).join(" ");
}

export function valueText(value: NearbyValue): string {
  return [value.type, value.why, statisticsText(value.stats, !value.why)].filter((each) => each).join(", ");
}
