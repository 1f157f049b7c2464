// The ticks of a logarithmic axis.  uPlot's own need whole powers of ten at the ends of the axis.

/** The most powers of ten with a tick. */
const MOST = 6;
/** The most powers of ten whose multiples have ticks too. */
const FEW = 3;
/** The ticks of an axis within less than one power of ten. */
const WITHIN = 4;

/** Ticks from `low` to `high`, which are positive. */
export function logarithmicTicks(low: number, high: number): number[] {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const every = Math.max(1, Math.ceil((last - first) / MOST));
  const factors = last - first <= FEW ? [1, 2, 5] : [1];
  const ticks: number[] = [];
  for (let power = first; power <= last; power += every) {
    ticks.push(...factors.map((factor) => Number(`${factor}e${power}`)));
  }
  const found = ticks.filter((each) => each >= low && each <= high);
  return found.length >= 2 ? found : Array.from({ length: WITHIN }, (_, index) => low + ((index + 0.5) * (high - low)) / WITHIN);
}
