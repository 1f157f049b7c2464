// The curves of the shown runs: one for each tracked name, part and run.

import type { PageRun, PageTrack } from "../../journal/messages";
import { indexFrom } from "./thinning";

export interface Curve {
  run: PageRun;
  part: string;
  steps: ArrayLike<number>;
  values: ArrayLike<number>;
  /** The index of the point at which the curve leaves the one of its parent. */
  branch?: number;
  /** The indices of NaN and Inf. */
  nonfinite: number[];
}

/** The curves of one tracked name. */
export interface Plot {
  name: string;
  curves: Curve[];
}

type Series = Pick<PageTrack, "steps" | "values">;

const NOTHING: Series = { steps: new Float64Array(), values: new Float64Array() };

/** The plots of the shown runs, in the order of the tracks.  A fork starts at its parent, if that is shown too. */
export function plotsOf(runs: readonly PageRun[], shown: ReadonlySet<number>): Plot[] {
  const plots = new Map<string, Plot>();
  for (const run of runs.filter(({ number }) => shown.has(number))) {
    for (const [name, part] of namesOf(run, runs)) {
      const curve = curveOf(run, name, part, runs, shown);
      if (curve.steps.length) {
        const plot = plots.get(name) ?? { name, curves: [] };
        plots.set(name, plot);
        plot.curves.push(curve);
      }
    }
  }
  return [...plots.values()];
}

/** Name and part of each track of a run and of its parents. */
function namesOf(run: PageRun, runs: readonly PageRun[]): [string, string][] {
  const all = [run, ...ancestorsOf(run, runs)].flatMap(({ tracks }) => tracks);
  const found = new Map(all.map(({ name, part }): [string, [string, string]] => [JSON.stringify([name, part]), [name, part]]));
  return [...found.values()];
}

function ancestorsOf(run: PageRun, runs: readonly PageRun[]): PageRun[] {
  const parent = runs.find(({ number }) => number === run.parent);
  return parent ? [parent, ...ancestorsOf(parent, runs)] : [];
}

function curveOf(run: PageRun, name: string, part: string, runs: readonly PageRun[], shown: ReadonlySet<number>): Curve {
  const own = trackOf(run, name, part);
  const parent = runs.find(({ number }) => number === run.parent);
  const isBranch = parent !== undefined && shown.has(parent.number);
  const before = parent ? history(parent, name, part, run.parent_step ?? 0, runs) : NOTHING;
  const inherited = isBranch ? cut(before, before.steps.length - 1, before.steps.length) : before;
  const from = run.parent === null || !parent ? 0 : indexFrom(own.steps, run.parent_step ?? 0);
  const { steps, values } = joined(inherited, cut(own, from, own.steps.length));
  const branch = isBranch && inherited.steps.length ? 0 : undefined;
  // A fork without own values repeats nothing of its parent.
  const isEmpty = isBranch && own.steps.length === from;
  return { run, part, ...(isEmpty ? NOTHING : { steps, values }), branch, nonfinite: nonfiniteOf(values, branch === 0 ? 1 : 0) };
}

/** The values of a run before a step, with those of its parents. */
function history(run: PageRun, name: string, part: string, end: number, runs: readonly PageRun[]): Series {
  const own = trackOf(run, name, part);
  const parent = runs.find(({ number }) => number === run.parent);
  const start = run.parent_step ?? 0;
  const before = parent ? history(parent, name, part, Math.min(start, end), runs) : NOTHING;
  return joined(before, cut(own, parent ? indexFrom(own.steps, start) : 0, indexFrom(own.steps, end)));
}

function trackOf({ tracks }: PageRun, name: string, part: string): Series {
  return tracks.find((each) => each.name === name && each.part === part) ?? NOTHING;
}

function cut({ steps, values }: Series, first: number, end: number): Series {
  return { steps: steps.slice(Math.max(0, first), end), values: values.slice(Math.max(0, first), end) };
}

function joined(one: Series, other: Series): Series {
  if (!one.steps.length) {
    return other;
  }
  return { steps: concatenated(one.steps, other.steps), values: concatenated(one.values, other.values) };
}

function concatenated(one: Float64Array, other: Float64Array): Float64Array {
  const all = new Float64Array(one.length + other.length);
  all.set(one);
  all.set(other, one.length);
  return all;
}

function nonfiniteOf(values: Float64Array, first: number): number[] {
  const found: number[] = [];
  for (let index = first; index < values.length; index++) {
    if (!Number.isFinite(values[index])) {
      found.push(index);
    }
  }
  return found;
}

/** The run that executed a step: a parent, if the step is before the fork. */
export function ownerOf(run: PageRun, step: number, runs: readonly PageRun[]): PageRun {
  const parent = runs.find(({ number }) => number === run.parent);
  return parent && step < (run.parent_step ?? 0) ? ownerOf(parent, step, runs) : run;
}

/** The first and the last step of all curves. */
export function extentOf(plots: readonly Plot[]): [number, number] {
  const curves = plots.flatMap((plot) => plot.curves);
  const low = Math.min(...curves.map(({ steps }) => steps[0]));
  const high = Math.max(...curves.map(({ steps }) => steps[steps.length - 1]));
  return low < high ? [low, high] : [low - 1, high + 1];
}

/** The runs with the count of their parents: each fork after its parent. */
export function treeOf(runs: readonly PageRun[]): { run: PageRun; depth: number }[] {
  const numbers = new Set(runs.map(({ number }) => number));
  const below = (parent: number | null, depth: number): { run: PageRun; depth: number }[] =>
    runs
      .filter((run) => (parent === null ? run.parent === null || !numbers.has(run.parent) : run.parent === parent))
      .flatMap((run) => [{ run, depth }, ...below(run.number, depth + 1)]);
  return below(null, 0);
}
