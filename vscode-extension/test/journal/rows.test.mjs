// The rows of the view *Runs*, and the commands that they lead to.

import assert from "node:assert/strict";
import { test } from "node:test";
import "../editor.mjs";
import { bundled } from "../bundled.mjs";

const { addressOf, bytesText, childrenOf, itemOf, journalRow, pageRun, stepOf } = await bundled(
  "journal/rows",
  "journal/log",
  "journal/actions",
  "journal/curvesTab",
);

const run = (number, more = {}) => ({
  number,
  name: "train",
  kind: "graph",
  status: "ended",
  parent: null,
  parent_step: null,
  started: "2026-11-25T02:54:23",
  ended: null,
  steps: 500,
  tracks: [],
  checkpoints: [],
  events: [],
  ...more,
});

const track = (name, part, values) => ({ name, part, steps: values.map((_, step) => step), values });
const nan = { kind: "nan", step: 380, message: "%loss has 1 NaN\nfrom Log" };
const at = (of, step) => ({ run: of, step, epoch: 3, bytes: 2048 });

const RUNS = [
  run(1, { status: "failed", tracks: [track("acc", "train", [0.5]), track("val_loss", "test", [1]), track("loss", "train", [2, "NaN"])], events: [nan], checkpoints: [at(1, 0), at(1, 300)] }),
  run(2, { parent: 1, parent_step: 380, status: "running", tracks: [track("loss", "train", [0.123456])], checkpoints: [at(1, 0), at(1, 300)] }),
  run(3, { parent: 2, parent_step: 400, steps: 1 }),
  run(4, { name: "", status: "lost" }),
];

/** The rows below a journal as text, indented. */
function lines(journal) {
  const text = (row, depth) => {
    const { label, description = "", iconPath } = itemOf(row, true);
    return [`${"  ".repeat(depth)}${label} | ${description} | ${iconPath.id}`, ...childrenOf(row).flatMap((each) => text(each, depth + 1))];
  };
  return text(journalRow(journal), 0);
}

const JOURNAL = { file: "/work/out/run.db", log: { runs: RUNS }, error: "" };

test("a journal has its runs, with events, checkpoints and forks below each", () => {
  assert.deepEqual(lines(JOURNAL), [
    "run.db | 4 runs, out | book",
    "  #1 train | failed, 500 steps, loss NaN | error",
    "    NaN at step 380 | %loss has 1 NaN | error",
    "    Checkpoints | 2 | history",
    "      Step 0 | epoch 3, 2 KiB | save",
    "      Step 300 | epoch 3, 2 KiB | save",
    "    #2 train | running, fork of #1 at step 380, 500 steps, loss 0.1235 | sync~spin",
    "      #3 train | ended, fork of #2 at step 400, 1 step | pass",
    "  #4 | lost, 500 steps | warning",
  ]);
});

test("an Inf without a NaN is named", () => {
  const log = { runs: [run(1, { events: [{ kind: "inf", step: 3, message: "%loss is inf" }] })] };
  assert.ok(lines({ ...JOURNAL, log }).includes("    Inf at step 3 | %loss is inf | error"));
});

test("an unreadable journal shows the error above the runs that were read before", () => {
  const error = "error: damaged\n  hint: restore it";
  assert.deepEqual(lines({ ...JOURNAL, log: undefined, error }), ["run.db | out | book", "  error: damaged |  | error"]);
  assert.equal(lines({ ...JOURNAL, error }).length, 10);
  assert.deepEqual(lines({ ...JOURNAL, log: { runs: [] } }), ["run.db | 0 runs, out | book", "  no run yet |  | info"]);
});

test("all ids differ, and stay the same when a journal is read again", () => {
  const ids = (row) => [row.id, ...childrenOf(row).flatMap(ids)];
  const first = ids(journalRow(JOURNAL));
  assert.equal(new Set(first).size, first.length);
  assert.deepEqual(ids(journalRow({ ...JOURNAL, log: structuredClone(JOURNAL.log) })), first);
});

test("events of one kind at consecutive steps are one row", () => {
  const event = (kind, step) => ({ kind, step, message: `${kind} ${step}` });
  const events = [event("spike", 3), event("nan", 4), event("nan", 5), event("nan", 6), event("nan", 9), event("note", null), event("note", null)];
  const [row] = childrenOf(journalRow({ ...JOURNAL, log: { runs: [run(1, { events })] } }));
  assert.deepEqual(
    childrenOf(row).map((each) => itemOf(each, true)).map(({ label, description }) => `${label}: ${description}`),
    ["spike at step 3: spike 3", "NaN at steps 4 to 6: nan 4", "NaN at step 9: nan 9", "note: note null", "note: note null"],
  );
});

test("checkpoints and events have a step, runs have none", () => {
  const [one] = childrenOf(journalRow(JOURNAL));
  const [event, checkpoints] = childrenOf(one);
  assert.deepEqual([one, event, childrenOf(checkpoints)[1]].map(stepOf), [undefined, 380, 300]);
  assert.deepEqual([one, event, checkpoints].map((row) => itemOf(row, true).contextValue), ["run", "step", undefined]);
});

test("a step has an address", () => {
  assert.equal(addressOf("/work/run.db", 1, 380), "/work/run.db#1@380");
});

test("sizes have the units of the command line", () => {
  assert.deepEqual([0, 1023, 1024, 1536, 5 * 2 ** 30].map(bytesText), ["0 B", "1023 B", "1 KiB", "1.5 KiB", "5 GiB"]);
});

test("a page has the values as numbers, with NaN and Inf", () => {
  const [{ steps, values }] = pageRun(run(1, { tracks: [track("loss", "train", [1, "NaN", "Infinity", "-Infinity", null])] })).tracks;
  assert.deepEqual(steps, Float64Array.of(0, 1, 2, 3, 4));
  assert.deepEqual(values, Float64Array.of(1, NaN, Infinity, -Infinity, NaN));
});

test("a run that has ended with a loss that is not finite has no check mark", () => {
  const icon = (values) => itemOf({ kind: "run", journal: JOURNAL, run: run(9, { tracks: [track("loss", "train", values)] }), id: "9" }, true).iconPath.id;
  assert.equal(icon([1, 0.5]), "pass");
  assert.equal(icon([1, "NaN"]), "warning");
  assert.equal(icon([1, "Infinity"]), "warning");
});
