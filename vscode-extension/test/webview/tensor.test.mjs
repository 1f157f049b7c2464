// The tensor view: sizes, scales and texts.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bundled } from "../bundled.mjs";

const { NAN, aroundConstant, distanceText, painter, positionOf, scaleOf, sized, tableOf, valueAt } = await bundled(
  "webview/tensor/picture",
  "webview/color/colors",
  "webview/page/numbers",
  "webview/tensor/text",
);

/** A drawing of `rows` x `columns` cells, each a block of `down` x `across` elements. */
const drawing = (rows, columns, down = 1, across = 1) => ({
  grid: { rows, columns },
  rows: { start: 0, step: down },
  columns: { start: 0, step: across },
});

test("a picture keeps the aspect ratio of its tensor at any size of the view", () => {
  for (const [width, height] of [[600, 400], [200, 800], [60, 60]]) {
    const [wide, high] = sized(drawing(48, 64), width, height);
    assert.ok(Math.abs(wide / high - 64 / 48) < 0.03, `${wide} x ${high}`);
  }
  const [wide, high] = sized(drawing(256, 256, 16, 4), 600, 600);
  assert.deepEqual([wide, high], [150, 600]);
});

test("a picture that does not fit is scrolled, not distorted", () => {
  assert.deepEqual(sized(drawing(8, 8), 20, 20), [96, 96]);
  assert.deepEqual(sized(drawing(1024, 64), 600, 400), [96, 1536]);
  const [wide, high] = sized(drawing(1, 65536), 600, 400);
  assert.deepEqual([wide, high], [8192, 12]);
});

test("a logarithmic scale separates small values on both sides of zero", () => {
  const values = [-1000, -1, -0.001, 0, 0.001, 1, 1000];
  const table = [...tableOf("diverging")];
  const steps = (log) => values.map((value) => table.indexOf(painter(scaleOf(values, "diverging", log))(value, 0)));
  assert.ok(new Set(steps(false)).size < 5);
  assert.equal(new Set(steps(true)).size, values.length);
  const scale = scaleOf(values, "even", true);
  assert.deepEqual([0, 0.5, 1].map((part) => Math.round(valueAt(part, scale))), [-1000, 0, 1000]);
});

test("NaN has its color on every scale", () => {
  const scale = scaleOf([0, 1], "even", true);
  assert.equal(painter(scale)(0, NAN), 0xffff00ff);
});

test("the axis of a constant is around it", () => {
  assert.deepEqual(aroundConstant(0, 0), [-1, 1]);
  assert.deepEqual(aroundConstant(5, 5), [0, 10]);
  assert.deepEqual(aroundConstant(null, null), [-1, 1]);
  assert.equal(aroundConstant(0, 1), undefined);
});

test("NaN on one side is not a difference of 0", () => {
  const found = { max_abs: 0, max_rel: 0, mismatched: 2, nan_mismatch: 2, inf_mismatch: 0, count: 6, worst: [0, 1] };
  assert.equal(distanceText(found), "2 of 6 elements differ · NaN on one side: 2 · worst at [0, 1]");
  assert.match(distanceText({ ...found, mismatched: 3, max_abs: 0.5 }), /NaN on one side: 2 · largest difference 0\.5/);
});

test("elements are counted in C order", () => {
  assert.equal(positionOf([1, 2, 3], [2, 3, 4]), 23);
});
