// The page *Run Curves*: curves of forks, the points that are drawn, and the ticks of a logarithmic axis.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bundled } from "../bundled.mjs";

const { extentOf, indexFrom, logarithmicTicks, marked, nearestIndex, ownerOf, plotsOf, thinned, treeOf } = await bundled(
  "webview/runs/curves",
  "webview/runs/thinning",
  "webview/runs/ticks",
);

const track = (name, steps, value = (step) => step, part = "train") => ({ name, part, steps: Float64Array.from(steps), values: Float64Array.from(steps, value) });
const upTo = (end, first = 0) => Array.from({ length: end - first }, (_, index) => first + index);
const run = (number, tracks, parent = null, parent_step = null) => ({ number, tracks, parent, parent_step });

/** A run of 10 steps, a fork of it at step 6, and a fork of that at step 8; each value shows its run. */
const FAMILY = [
  run(1, [track("loss", upTo(10), (step) => 100 + step), track("acc", [4, 9], () => 1, "test")]),
  run(2, [track("loss", upTo(12), (step) => (step < 6 ? 100 : 200) + step)], 1, 6),
  run(3, [track("loss", upTo(10), (step) => (step < 6 ? 100 : step < 8 ? 200 : 300) + step)], 2, 8),
];

const curves = (runs, ...shown) => plotsOf(runs, new Set(shown)).find(({ name }) => name === "loss").curves;
const values = (curve) => [...curve.values];

test("a fork leaves the curve of its parent at the last step before the fork", () => {
  const [one, two, three] = curves(FAMILY, 1, 2, 3);
  assert.deepEqual(values(one), upTo(110, 100));
  assert.deepEqual(values(two), [105, 206, 207, 208, 209, 210, 211]);
  assert.deepEqual(values(three), [207, 308, 309]);
  assert.deepEqual([one, two, three].map(({ branch }) => branch), [undefined, 0, 0]);
});

test("a fork without its parent in the plot has the steps of the parent too", () => {
  const [three] = curves(FAMILY, 3);
  assert.deepEqual(values(three), [100, 101, 102, 103, 104, 105, 206, 207, 308, 309]);
  assert.equal(three.branch, undefined);
});

test("forks that list only their own steps have the same curves", () => {
  const own = FAMILY.map((each) => ({ ...each, tracks: each.tracks.map((one) => track(one.name, [...one.steps].filter((step) => step >= (each.parent_step ?? 0)), (step) => one.values[one.steps.indexOf(step)], one.part)) }));
  for (const shown of [[1, 2, 3], [3], [1, 3], [2]]) {
    assert.deepEqual(curves(own, ...shown).map(values), curves(FAMILY, ...shown).map(values), String(shown));
  }
});

test("train and test parts are separate curves of a plot; a name without values has no plot", () => {
  const runs = [run(1, [track("loss", [0, 1]), track("loss", [1], () => 7, "test"), track("empty", [])])];
  const plots = plotsOf(runs, new Set([1]));
  assert.deepEqual(plots.map(({ name, curves }) => [name, curves.map(({ part }) => part)]), [["loss", ["train", "test"]]]);
  assert.deepEqual(plotsOf(runs, new Set()), []);
});

test("a fork that has not run a step yet has no curve beside its parent", () => {
  assert.deepEqual(curves([FAMILY[0], run(2, [track("loss", upTo(6))], 1, 6)], 1, 2).map(({ run }) => run.number), [1]);
});

test("a step before a fork is one of the parent", () => {
  const [, , three] = FAMILY;
  assert.deepEqual([5, 6, 7, 8].map((step) => ownerOf(three, step, FAMILY).number), [1, 2, 2, 3]);
});

test("forks are listed below their parents; a run without its parent is at the top", () => {
  const runs = [run(1, []), run(2, []), run(3, [], 1, 0), run(4, [], 3, 0), run(5, [], 99, 0)];
  assert.deepEqual(treeOf(runs).map(({ run: { number }, depth }) => [number, depth]), [[1, 0], [3, 1], [4, 2], [2, 0], [5, 0]]);
});

test("the axis has all steps, with room around a single one", () => {
  const extent = (...runs) => extentOf(plotsOf(runs, new Set(runs.map(({ number }) => number))));
  assert.deepEqual(extent(...FAMILY), [0, 11]);
  assert.deepEqual(extent(run(1, [track("loss", [5])])), [4, 6]);
});

test("NaN and Inf are marked, and leave gaps", () => {
  const of = [1, NaN, Infinity, 4];
  const [curve] = curves([run(1, [track("loss", upTo(4), (step) => of[step])])], 1);
  assert.deepEqual(curve.nonfinite, [1, 2]);
  assert.deepEqual(thinned(curve.steps, curve.values, 0, 3, 100).y, [1, null, null, 4]);
});

test("the nearest step is found in steps with gaps", () => {
  const steps = [0, 10, 20, 100];
  assert.deepEqual([-5, 4, 6, 15, 59, 61, 500].map((step) => nearestIndex(steps, step)), [0, 0, 1, 1, 2, 3, 3]);
  assert.equal(nearestIndex([], 1), -1);
  assert.deepEqual([-1, 0, 1, 100, 101].map((step) => indexFrom(steps, step)), [0, 0, 1, 3, 4]);
});

test("the points of each column keep the first, least, greatest and last value", () => {
  const steps = upTo(100_000);
  // A spike of one step in each direction.
  const values = Float64Array.from(steps, (step) => (step === 12_345 ? 1000 : step === 67_890 ? -1000 : Math.sin(step)));
  const columns = 500;
  const { x, y } = thinned(steps, values, 0, 99_999, columns);
  assert.ok(x.length <= 4 * (columns + 1), `${x.length} points`);
  assert.ok(x.every((step, index) => index === 0 || step > x[index - 1]), "ascending");
  assert.deepEqual([x[0], x.at(-1)], [0, 99_999]);
  assert.deepEqual([y[x.indexOf(12_345)], y[x.indexOf(67_890)]], [1000, -1000]);
  for (let column = 0; column < columns; column++) {
    const inColumn = (step) => Math.floor((step / 99_999) * columns) === column;
    const all = steps.slice(column * 199, (column + 2) * 201).filter(inColumn).map((step) => values[step]);
    const drawn = y.filter((_, index) => inColumn(x[index]));
    assert.deepEqual([Math.min(...drawn), Math.max(...drawn)], [Math.min(...all), Math.max(...all)], `column ${column}`);
  }
});

test("a part of the steps is drawn with the next point on each side, and few points are all drawn", () => {
  assert.deepEqual(thinned(upTo(100), upTo(100), 40.5, 43.5, 10).x, [40, 41, 42, 43, 44]);
  assert.deepEqual(thinned([], [], 0, 1, 10), { x: [], y: [] });
});

test("a column of only NaN is a gap", () => {
  const steps = upTo(10_000);
  const { x, y } = thinned(steps, Float64Array.from(steps, (step) => (step < 5000 ? 1 : NaN)), 0, 9999, 100);
  assert.ok(x.every((step, index) => (y[index] === null) === step >= 5000));
});

test("a logarithmic axis has round ticks, also within one power of ten", () => {
  assert.deepEqual(logarithmicTicks(0.09, 1.1), [0.1, 0.2, 0.5, 1]);
  assert.deepEqual(logarithmicTicks(1e-9, 1), [1e-9, 1e-7, 1e-5, 0.001, 0.1]);
  const narrow = logarithmicTicks(0.31, 0.35);
  assert.equal(narrow.length, 4);
  assert.ok(narrow.every((each) => each > 0.31 && each < 0.35));
});

test("one mark for each column with NaN or Inf, which is NaN if any of its values is", () => {
  const steps = upTo(100_000);
  const values = Float64Array.from(steps, (step) => (step < 50_000 ? 1 : step === 77_777 ? NaN : Infinity));
  const nonfinite = upTo(100_000, 50_000);
  const marks = marked({ steps, values, nonfinite }, 0, 99_999, 500);
  assert.equal(marks.length, 250);
  assert.equal(marks[0].step, 50_000);
  assert.deepEqual(marks.filter(({ nan }) => nan).length, 1);
  assert.deepEqual(marked({ steps, values, nonfinite }, 77_777, 77_778, 10), [{ step: 77_777, nan: true }, { step: 77_778, nan: false }]);
  assert.deepEqual(marked({ steps, values, nonfinite }, 0, 49_999, 10), []);
});
