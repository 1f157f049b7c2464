// The fields of the form "Run with", and the launch configuration from them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bundled } from "../bundled.mjs";

const { choicesOf, fieldOf, launchKeys, inputText } = await bundled("runForm/fields");

test("the text of an input becomes a field of the form, and converts back to the same text", () => {
  const fields = {
    "": ["", ""],
    zeros: ["zeros", ""],
    "normal[1,512]": ["normal", "1,512"],
    "16000": ["value", "16000"],
    "[[0.5, nan]]": ["value", "[[0.5, nan]]"],
    "/data/x.npy": ["file", "/data/x.npy"],
    "batch.NPZ:x": ["file", "batch.NPZ:x"],
    "photo.png": ["file", "photo.png"],
    "/data/photo.JPEG:/255,resize": ["file", "/data/photo.JPEG:/255,resize"],
    "photo.svg": ["value", "photo.svg"],
  };
  for (const [text, [kind, detail]] of Object.entries(fields)) {
    assert.deepEqual(fieldOf(text), { kind, detail });
    assert.equal(inputText(fieldOf(text)), text);
  }
});

test("an empty field is not a key of a launch, and sizes are numbers", () => {
  const choices = { inputs: { x: "ones", y: "" }, dims: { N: " 4", K: "" }, backend: "", seed: "7" };
  assert.deepEqual(launchKeys(choices), { inputs: { x: "ones" }, dims: { N: 4 }, backend: undefined, allocator: undefined, seed: 7 });
  assert.deepEqual(launchKeys({ inputs: {}, dims: {}, backend: "cupy", allocator: "arena", seed: "" }), { inputs: {}, dims: {}, backend: "cupy", allocator: "arena", seed: undefined });
});

test("a size that is not an integer is an error with its name", () => {
  for (const text of ["-1", "4.5", "many"]) {
    const choices = { inputs: {}, dims: { N: text }, backend: "", seed: "" };
    assert.throws(() => launchKeys(choices), { message: `the size N must be a non-negative integer, not "${text}"` });
  }
});

test("the inputs of a configuration are texts of the form", () => {
  const configuration = { inputs: { "%x": "ones", sr: 16000, l: [1, 2], o: null }, dims: { N: 4 }, seed: 0 };
  assert.deepEqual(choicesOf(configuration), {
    inputs: { x: "ones", sr: "16000", l: "[1,2]" },
    dims: { N: "4" },
    backend: "",
    allocator: "",
    seed: "0",
  });
});
