// The timeline of streams: places of statements and waits, keys, and words.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bundled } from "../bundled.mjs";

const { described, firstScale, fittingScale, laidOut, microseconds, neighbor, note } = await bundled("webview/streams/layout", "webview/streams/text");

const statement = (lane, name, start, duration, line, state = "", events = []) => ({ lane, name, start, duration, line, state, events });
const timeline = {
  source: { path: "/two.nnc" },
  measured: false,
  leftOut: 0,
  lanes: [{ name: "host", device: "", waits: [] }, { name: "s0", device: "cuda:0", waits: [] }, { name: "s1", device: "", waits: [] }],
  statements: [
    statement(1, "%a Relu", 0, 1, 8),
    statement(2, "%b Neg", 0, 1, 9, "current", ["record e2"]),
    statement(2, "%c Exp", 1, 1, 10),
    statement(1, "%y Add", 1, 1, 11, "next", ["wait e2"]),
    statement(0, "main end", 2, 1, 12),
  ],
  waits: [["e2", 1, 3]],
  races: [],
};
const measured = { ...timeline, measured: true, statements: timeline.statements.map((each) => ({ ...each, start: 100 * each.start + 50, duration: each.lane ? 100 : 0 })) };

test("statements of a stream follow each other, and no two of them overlap", () => {
  for (const each of [timeline, measured]) {
    const { boxes, width, height } = laidOut(each, firstScale(each, 600));
    assert.equal(height, 3 * 46);
    for (const box of boxes) {
      assert.ok(box.x >= 0 && box.x + box.width <= width + 4);
      for (const other of boxes.filter(({ of, x }) => of.lane === box.of.lane && x > box.x)) {
        assert.ok(box.x + box.width <= other.x, `${box.of.name} and ${other.of.name}`);
      }
    }
  }
});

test("an arrow leads from the statement that records an event to the one that waits for it", () => {
  const { boxes, arrows } = laidOut(timeline, 100);
  assert.equal(arrows.length, 1);
  const [from, to] = [boxes[1], boxes[3]];
  assert.ok(arrows[0].path.startsWith(`M${from.x + from.width} ${from.y + 14}C`));
  assert.ok(arrows[0].path.endsWith(` ${to.x} ${to.y + 14}`));
});

test("a race is a line between its statements, with words at both and in the note", () => {
  const racing = { ...timeline, races: [["write-read", "%a", 0, 2]] };
  const { boxes, races } = laidOut(racing, 100);
  assert.equal(races.length, 1);
  assert.equal(races[0].path, `M${boxes[0].x + boxes[0].width / 2} ${boxes[0].y + 28}L${boxes[2].x + boxes[2].width / 2} ${boxes[2].y}`);
  for (const at of [0, 2]) {
    assert.match(described(racing, timeline.statements[at]), /race \(write-read\) over %a of lines 8 and 10/);
  }
  assert.doesNotMatch(described(racing, timeline.statements[1]), /race/);
  assert.match(note(racing), /^1 race: red lines/);
});

test("measured times fill the window, from the first statement on", () => {
  const scale = firstScale(measured, 600);
  assert.equal(scale, fittingScale(measured, 600));
  assert.equal(Math.round(laidOut(measured, scale).width), 600);
  assert.equal(laidOut(measured, scale).boxes[0].x, 14);
  assert.ok(laidOut(measured, scale).boxes[4].width >= 4, "a statement that is not measured stays visible");
});

test("arrow keys move along a stream, and to the nearest statement of the next stream", () => {
  for (const [index, key, expected] of [
    [0, "ArrowRight", 3],
    [0, "ArrowLeft", undefined],
    [3, "ArrowLeft", 0],
    [0, "End", 3],
    [3, "ArrowDown", 2],
    [2, "ArrowUp", 3],
    [0, "ArrowUp", 4],
    [4, "ArrowUp", undefined],
    [2, "ArrowDown", undefined],
    [0, "x", undefined],
  ]) {
    assert.equal(neighbor(timeline, index, key), expected, `${key} at ${index}`);
  }
});

test("words name the stream, the events, the time and the state of a statement", () => {
  assert.equal(described(timeline, timeline.statements[1]), "%b Neg, line 9, s1, record e2, the current statement");
  assert.equal(described(measured, measured.statements[3]), "%y Add, line 11, s0, wait e2, median 100 µs, the next statement of its stream");
  assert.equal(described(measured, measured.statements[4]), "main end, line 12, host, not measured yet");
  assert.equal(microseconds(1234567), "1.23 s");
  assert.equal(microseconds(1234), "1.23 ms");
  assert.match(note({ ...timeline, leftOut: 7 }), /Arrows are waits.*"set times on".*7 statements are not shown\.$/);
  assert.match(note({ ...measured, lanes: timeline.lanes.slice(0, 1) }), /^The program has no schedule: .*median times/);
});
