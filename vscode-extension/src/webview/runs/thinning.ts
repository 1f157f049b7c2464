// Points of a curve for drawing: a picture of some hundred columns does not show more.

export interface Points {
  x: number[];
  /** null for NaN and Inf. */
  y: (number | null)[];
}

/** The first index whose step is at least `step`, in ascending steps. */
export function indexFrom(steps: ArrayLike<number>, step: number): number {
  let [low, high] = [0, steps.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/** The index of the step that is nearest to `step`; -1 without steps. */
export function nearestIndex(steps: ArrayLike<number>, step: number): number {
  const after = indexFrom(steps, step);
  if (after === 0 || after === steps.length) {
    return Math.min(after, steps.length - 1);
  }
  return step - steps[after - 1] <= steps[after] - step ? after - 1 : after;
}

/** The points from `low` to `high`, and the next one on each side.  Of the points in one of `columns` columns: the
 * first, the least, the greatest and the last, which draw the same line (M4: Jugel et al., VLDB 2014). */
export function thinned(steps: ArrayLike<number>, values: ArrayLike<number>, low: number, high: number, columns: number): Points {
  const first = Math.max(0, indexFrom(steps, low) - 1);
  const end = Math.min(steps.length, indexFrom(steps, high) + 1);
  const points: Points = { x: [], y: [] };
  const add = (index: number) => {
    points.x.push(steps[index]);
    points.y.push(Number.isFinite(values[index]) ? values[index] : null);
  };
  if (end - first <= 4 * columns) {
    for (let index = first; index < end; index++) {
      add(index);
    }
    return points;
  }
  const width = (high - low) / columns;
  for (let index = first; index < end; ) {
    const edge = low + (Math.floor((steps[index] - low) / width) + 1) * width;
    const next = Math.min(end, Math.max(index + 1, indexFrom(steps, edge)));
    outline(values, index, next).forEach(add);
    index = next;
  }
  return points;
}

/** The indices of the first, least, greatest and last value, in order. */
function outline(values: ArrayLike<number>, first: number, end: number): number[] {
  let [least, greatest] = [-1, -1];
  for (let index = first; index < end; index++) {
    if (Number.isFinite(values[index])) {
      least = least < 0 || values[index] < values[least] ? index : least;
      greatest = greatest < 0 || values[index] > values[greatest] ? index : greatest;
    }
  }
  const found = [first, least, greatest, end - 1].filter((index) => index >= 0);
  return [...new Set(found)].sort((one, other) => one - other);
}

/** A step with NaN or Inf. */
export interface Mark {
  step: number;
  nan: boolean;
}

interface Marked {
  steps: ArrayLike<number>;
  values: ArrayLike<number>;
  nonfinite: readonly number[];
}

/** The first NaN or Inf of each of `columns` columns from `low` to `high`; NaN if the column has any. */
export function marked({ steps, values, nonfinite }: Marked, low: number, high: number, columns: number): Mark[] {
  const marks: Mark[] = [];
  let last = -1;
  for (const index of nonfinite) {
    const step = steps[index];
    const column = Math.min(columns - 1, Math.floor(((step - low) / (high - low)) * columns));
    const mark = marks.at(-1);
    if (step < low || step > high) {
      continue;
    }
    if (mark && column === last) {
      mark.nan ||= Number.isNaN(values[index]);
    } else {
      marks.push({ step, nan: Number.isNaN(values[index]) });
      last = column;
    }
  }
  return marks;
}
