// Folds of listings, and which folds the editor closes on opening.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bundled } from "../bundled.mjs";
import { editor } from "../editor.mjs";

const { listingFolds } = await bundled("language/listingFolds");
const convert = await bundled("language/conversion");

const { Imports, Region } = editor.FoldingRangeKind;

const LISTING = `graph @main(%x: f32[2]) -> (%y: f32[2]) {
  if %c {
    yield %x
  } else {
    %h = Relu(%x)
    yield %h
  } -> (%y)
  return %y
}

# not a block {
states layers.0 {
  %.w: f32[2] = data
  %.b: f32[2] = data
}
}`;

test("a listing folds its blocks, and the states on opening", () => {
  const folds = listingFolds(LISTING.split("\n")).map(({ start, end, kind }) => [start, end, kind]);
  assert.deepEqual(folds, [[0, 7, Region], [1, 2, Region], [3, 5, Region], [11, 13, Imports]]);
});

test("the states and the unread views of a text fold on opening", () => {
  const kinds = ["imports", "unread views", "region", undefined].map((kind) => convert.editorFolding({ startLine: 1, endLine: 2, kind }).kind);
  assert.deepEqual(kinds, [Imports, Imports, Region, undefined]);
});
