// The tensor view: display options, navigation, requests, and files.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bundled } from "../bundled.mjs";

const { Canceled, Loader, PageRequests, cellOf, csvOf, defaultOptions, elementOf, elementTable, fitted, indexOf, isSameContent, loadContent, modesOf, navigationOf, optionsShowing } = await bundled(
  "webview/tensor/content",
  "webview/tensor/displayOptions",
  "webview/tensor/elementTable",
  "webview/tensor/files",
  "webview/tensor/loader",
  "webview/tensor/navigation",
  "webview/tensor/requests",
);

const f32 = (shape) => ({ options: defaultOptions("f32", shape), shape });
const info = (shape, dtype = "f32") => ({ type: `${dtype}[${shape}]`, dtype, shape });

test("the first mode depends on the shape", () => {
  const modes = [[[], "table"], [[9], "line"], [[4, 5], "heat"], [[3, 64, 64], "image"], [[64, 64, 3], "image"], [[1, 32, 7, 7], "channels"], [[0, 4], "table"]];
  for (const [shape, mode] of modes) {
    assert.equal(f32(shape).options.mode, mode, `[${shape}]`);
  }
  assert.equal(defaultOptions("str", [2]).mode, "table");
  assert.deepEqual(modesOf("f32", [9]), ["heat", "line", "table", "histogram"]);
});

test("the axes of an image are those of its layout", () => {
  for (const [shape, axes] of [[[2, 3, 64, 32], [2, 3, 1]], [[64, 32, 3], [0, 1, 2]]]) {
    const { rows, columns, channels } = f32(shape).options;
    assert.deepEqual([rows, columns, channels], axes);
  }
});

test("options that apply to another shape are kept", () => {
  const chosen = { ...f32([6, 8, 8]).options, at: [5, 0, 0], map: "diverging", window: { rows: [0, 4], columns: [0, 4] } };
  const smaller = fitted(chosen, "f32", [2, 8, 8]);
  assert.deepEqual([smaller.at, smaller.map, smaller.window, smaller.mode], [[1, 0, 0], "diverging", undefined, chosen.mode]);
  const flat = fitted(chosen, "f32", [9]);
  assert.deepEqual([flat.mode, flat.at, flat.map], ["line", [0], "diverging"]);
});

const key = (name, more = {}) => ({ key: name, shiftKey: false, ctrlKey: false, metaKey: false, altKey: false, ...more });
const grid = (rows, columns) => ({ rows, columns });

test("arrow keys move the cursor within the picture", () => {
  const { options, shape } = f32([4, 8]);
  const pressed = (each, cursor) => navigationOf(each, { ...options, cursor }, shape, grid(4, 8), [1, 1])?.cursor;
  assert.deepEqual(pressed(key("ArrowDown"), [0, 0]), [1, 0]);
  assert.deepEqual(pressed(key("ArrowUp"), [0, 3]), [0, 3]);
  assert.deepEqual(pressed(key("ArrowRight", { shiftKey: true }), [2, 1]), [2, 7]);
  assert.equal(pressed(key("ArrowDown", { ctrlKey: true }), [0, 0]), undefined);
});

test("page keys turn the last hidden axis, with Shift the one before", () => {
  const { options, shape } = f32([5, 6, 4, 8]);
  const heat = { ...options, mode: "heat", at: [4, 2, 0, 0] };
  const pressed = (each) => navigationOf(each, heat, shape, grid(4, 8), [])?.options.at;
  assert.deepEqual(pressed(key("PageDown")), [4, 3, 0, 0]);
  assert.deepEqual(pressed(key("PageDown", { shiftKey: true })), [4, 2, 0, 0]);
  assert.deepEqual(pressed(key("PageUp", { shiftKey: true })), [3, 2, 0, 0]);
});

test("zoom halves the window around the cursor, and ends with all elements", () => {
  const { options, shape } = f32([64, 64]);
  const zoomed = (each, changes) => navigationOf(key(each), { ...options, ...changes }, shape, grid(64, 64), [])?.options.window;
  assert.deepEqual(zoomed("+", { cursor: [10, 60] }), { rows: [0, 32], columns: [32, 64] });
  assert.deepEqual(zoomed("+", { cursor: [10, 60], window: { rows: [8, 12], columns: [58, 62] } }), { rows: [8, 12], columns: [58, 62] });
  assert.equal(zoomed("-", { cursor: [10, 60], window: { rows: [0, 32], columns: [32, 64] } }), undefined);
});

test("a found element is shown at the cursor, in its own cell", () => {
  const { options, shape } = f32([3, 1000, 1000]);
  const heat = { ...options, mode: "heat" };
  const found = optionsShowing([2, 500, 999], heat, shape);
  assert.deepEqual([found.at[0], found.cursor, found.window], [2, [500, 999], { rows: [468, 532], columns: [936, 1000] }]);
  assert.deepEqual(cellOf({ ...heat, ...found }, [1, 1, 1]), [32, 63]);
  assert.equal(optionsShowing([1, 2], f32([4, 4]).options, [4, 4]).window, undefined);
});

test("the first element of a cell is in that cell", () => {
  const options = { ...f32([64, 64]).options, window: { rows: [8, 40], columns: [16, 48] } };
  const cursor = elementOf(options, [4, 2], 3, 5);
  assert.deepEqual(cursor, [20, 26]);
  assert.deepEqual(cellOf({ ...options, cursor }, [4, 2]), [3, 5]);
});

test("an element of a line has the shown index of all other axes", () => {
  const { options } = f32([3, 4, 5]);
  assert.deepEqual(indexOf({ ...options, mode: "heat", at: [2, 0, 0] }, 3, 4), [2, 3, 4]);
  assert.deepEqual(indexOf({ ...options, mode: "line", at: [2, 1, 0] }, 3, 4), [2, 1, 4]);
});

/** A page whose requests are answered by `answer`. */
function page(answer) {
  const sent = [];
  const requests = new PageRequests((message) => {
    sent.push(message);
    if (message.kind === "request") {
      queueMicrotask(() => requests.receive({ kind: "answer", id: message.id, body: answer(message.request) }));
    }
  });
  return { sent, requests, loader: new Loader(requests, "%h") };
}

/** A slice of one element for each requested row and column. */
function sliceOf({ axes = [] }, shape, more) {
  const sizes = shape.map((size, axis) => (axes[axis]?.stop ?? size) - (axes[axis]?.start ?? 0));
  const values = Array.from({ length: sizes.reduce((all, each) => all * each, 1) }, (_, index) => index);
  return { type: info(shape).type, dtype: "f32", sourceShape: shape, stride: shape.map(() => 1), shape: sizes, reduce: "stride", data: values, ...more };
}

test("canceled requests fail, and the extension cancels them", async () => {
  const sent = [];
  const requests = new PageRequests((message) => sent.push(message));
  const answer = requests.request("nncdbg/stats", {});
  requests.cancelAll();
  await assert.rejects(answer, Canceled);
  assert.deepEqual(sent.map(({ kind, id }) => [kind, id]), [["request", 1], ["cancel", 1]]);
});

test("an answer that arrived with the moment is not requested", async () => {
  const { sent, requests } = page(() => "requested");
  requests.early = [{ key: JSON.stringify(["nncdbg/stats", { a: 1 }, 3]), body: "early" }];
  assert.equal(await requests.request("nncdbg/stats", { a: 1 }, 3), "early");
  assert.equal(await requests.request("nncdbg/stats", { a: 1 }, 4), "requested");
  assert.equal(sent.length, 1);
});

test("an unchanged picture is the same object, requested with its version", async () => {
  const { options, shape } = f32([4, 8]);
  const { sent, loader } = page(({ arguments: argument, known }) => (known === 3 ? { version: 3, unchanged: true } : sliceOf(argument, shape, { version: 3 })));
  const [first, second] = [await loader.picture(options, "here"), await loader.picture(options, "here")];
  assert.equal(first, second);
  assert.deepEqual(sent.map(({ request }) => request.known), [undefined, 3]);
});

test("a comparison side by side loads both values and the difference", async () => {
  const { options, shape } = f32([4, 8]);
  const compared = { ...options, against: "expression", other: "%g" };
  const { sent, loader } = page(({ arguments: argument }) => sliceOf(argument, shape));
  const content = await loadContent(loader, { info: info(shape), options: compared }, () => true);
  assert.deepEqual(content.shown.map(({ part }) => part), ["here", "there", "difference"]);
  assert.deepEqual(sent.map(({ request }) => request.arguments.against), [undefined, { expression: "%g" }, { expression: "%g" }]);
  assert.ok(isSameContent(content, { ...content, shown: [...content.shown] }));
  assert.ok(!isSameContent(content, { ...content, options: { ...compared } }));
});

test("content of another type is not shown", async () => {
  const { options, shape } = f32([4, 8]);
  const { loader } = page(({ arguments: argument }) => sliceOf(argument, shape));
  assert.equal(await loadContent(loader, { info: info(shape), options }, () => false), undefined);
});

test("a histogram of the other value is one of its expression", async () => {
  const { options, shape } = f32([4, 8]);
  const { sent, loader } = page(({ command, arguments: argument }) => (command === "nncdbg/histogram" ? { counts: [] } : sliceOf(argument, shape)));
  const histogram = { ...options, mode: "histogram", against: "previous", part: "difference" };
  await loadContent(loader, { info: info(shape), options: histogram }, () => true);
  assert.equal(sent.at(-1).request.arguments.expression, "(%h) - (prev(%h))");
  await assert.rejects(loadContent(loader, { info: info(shape), options: { ...histogram, against: "branch" } }, () => true), /other branch/);
});

test("a CSV file has one line for each row, of one axis for each element", async () => {
  const read = async (shape, dtype = "f32", data = undefined) => {
    const { loader } = page(({ arguments: argument }) => sliceOf(argument, shape, data && { data }));
    return csvOf(loader, info(shape, dtype), defaultOptions(dtype, shape), "here");
  };
  assert.equal(await read([2, 3]), "0,1,2\n3,4,5\n");
  assert.equal(await read([3]), "0\n1\n2\n");
  assert.equal(await read([1, 3], "str", ["a,b", 'say "hi"', "two\nlines"]), '"a,b","say ""hi""","two\nlines"\n');
  await assert.rejects(read([5000, 5000]), /25,000,000 elements: a CSV file can contain at most 4,194,304/);
});

test("elements of the tensor can be edited, those of a comparison cannot", () => {
  const edited = [];
  const table = (dtype, more) => elementTable(undefined, { info: info([2, 3], dtype), options: { ...defaultOptions(dtype, [2, 3]), ...more } }, { pointed: () => {}, edited: (...change) => edited.push(change) });
  assert.deepEqual([table("f32").rows, table("f32").columns], [2, 3]);
  table("f32").edit(1, 2, "nan");
  table("str").edit(0, 1, 'say "hi"');
  assert.deepEqual(edited, [[[1, 2], "nan"], [[0, 1], '"say \\"hi\\""']]);
  assert.equal(table("f32", { against: "previous", part: "there", mode: "table" }).edit, undefined);
});
