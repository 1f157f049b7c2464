// A journal is read while a view follows it, and only when it has changed.

import assert from "node:assert/strict";
import { appendFileSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { bundled } from "../bundled.mjs";
import "../editor.mjs";

const { Journal, Missing, parsedLog } = await bundled("journal/journal", "environment/python", "journal/reading");
const folder = mkdtempSync(path.join(tmpdir(), "nncdbg-"));
after(() => rmSync(folder, { recursive: true }));

const INTERVAL = 5;
let count = 0;

/** A journal that is read by `read`, with what was read. */
function journalOf(read) {
  const file = path.join(folder, `${++count}.db`);
  writeFileSync(file, "1");
  const reads = [];
  const journal = new Journal(
    file,
    async () => {
      reads.push(file);
      return read(reads.length);
    },
    INTERVAL,
  );
  return { journal, file, reads };
}

async function until(found) {
  for (let tries = 0; tries < 400 && !found(); tries++) {
    await setTimeout(INTERVAL);
  }
  assert.ok(found());
}

const log = (number) => ({ journal: "run.db", runs: [], number });

test("a followed journal is read at first, and again after each commit", async () => {
  const { journal, file, reads } = journalOf(log);
  let changes = 0;
  journal.onDidChange(() => changes++);
  const following = journal.follow();
  await until(() => changes === 1);
  await setTimeout(10 * INTERVAL);
  assert.equal(reads.length, 1, "unchanged");
  appendFileSync(`${file}-wal`, "a commit");
  await until(() => changes === 2);
  assert.equal(journal.log.number, 2);
  following.dispose();
  await setTimeout(2 * INTERVAL);
  appendFileSync(`${file}-wal`, "another");
  await setTimeout(10 * INTERVAL);
  assert.equal(reads.length, 2, "no view follows it");
  journal.dispose();
});

test("two views share the reads, and a refresh reads an unchanged journal", async () => {
  const { journal, reads } = journalOf(log);
  const views = [journal.follow(), journal.follow()];
  await until(() => journal.log);
  assert.equal(reads.length, 1);
  await journal.refresh();
  assert.equal(reads.length, 2);
  views.forEach((each) => each.dispose());
  journal.dispose();
});

test("an error keeps the runs that were read before", async () => {
  const { journal, file } = journalOf((number) => {
    if (number > 1) {
      throw new Error("error: the journal is damaged");
    }
    return log(number);
  });
  const following = journal.follow();
  await until(() => journal.log);
  appendFileSync(file, "damage");
  await until(() => journal.error);
  assert.equal(journal.error, "error: the journal is damaged");
  assert.equal(journal.log.number, 1);
  following.dispose();
  journal.dispose();
});

test("a deleted journal reports that it does not exist", async () => {
  const { journal, file, reads } = journalOf(log);
  rmSync(file);
  await journal.refresh();
  assert.equal(journal.error, "the file does not exist");
  assert.equal(reads.length, 0);
  journal.dispose();
});

test("without nncdbg, a journal is not read again until a refresh: each read would offer the installation", async () => {
  const { journal, file, reads } = journalOf((number) => {
    if (number === 1) {
      throw new Missing("nncdbg is not installed");
    }
    return log(number);
  });
  const following = journal.follow();
  await until(() => journal.error);
  appendFileSync(file, "a commit");
  await setTimeout(10 * INTERVAL);
  assert.equal(reads.length, 1);
  await journal.refresh();
  assert.deepEqual([journal.error, journal.log.number], ["", 2]);
  following.dispose();
  journal.dispose();
});

test("invisible characters of names are escaped", () => {
  const text = JSON.stringify({ runs: [{ name: "evil\u202egpj.exe\u001b[31m", events: [{ message: "two\nlines" }] }] });
  const [run] = parsedLog(text).runs;
  assert.equal(run.name, "evil\\u202egpj.exe\\u001b[31m");
  assert.equal(run.events[0].message, "two\nlines");
});
