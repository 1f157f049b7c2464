// Journal files: recognized by their header, and read again after a commit.

import assert from "node:assert/strict";
import { appendFileSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, test } from "node:test";
import { bundled } from "../bundled.mjs";

const { isJournal, signatureOf } = await bundled("journal/files");
const folder = mkdtempSync(path.join(tmpdir(), "nncdbg-"));
after(() => rmSync(folder, { recursive: true }));

/** The first page of a database. */
function firstPage(id) {
  const page = Buffer.alloc(512);
  page.write("SQLite format 3\0", 0, "latin1");
  page.write(id, 68, "latin1");
  return page;
}

/** A write-ahead log whose first frame is a page. */
function log(number, page) {
  const frame = Buffer.alloc(24);
  frame.writeUInt32BE(number, 0);
  return Buffer.concat([Buffer.alloc(32), frame, page]);
}

/** Writes a file, and its log. */
function file(name, content, logContent) {
  const path_ = path.join(folder, name);
  writeFileSync(path_, content);
  if (logContent) {
    writeFileSync(`${path_}-wal`, logContent);
  }
  return path_;
}

test("a journal has its application id in the header, or at first in the write-ahead log", async () => {
  for (const [name, expected, ...contents] of [
    ["journal.db", true, firstPage("nnj1")],
    ["new.db", true, firstPage("\0\0\0\0"), log(1, firstPage("nnj1"))],
    ["other.db", false, firstPage("\0\0\0\0")],
    ["other-log.db", false, firstPage("\0\0\0\0"), log(1, firstPage("abcd"))],
    ["other-page.db", false, firstPage("\0\0\0\0"), log(2, firstPage("nnj1"))],
    ["geopackage.db", false, firstPage("GPKG"), log(1, firstPage("nnj1"))],
    ["text.db", false, "nnj1".repeat(100)],
    ["short.db", false, firstPage("nnj1").subarray(0, 71)],
    ["empty.db", false, ""],
  ]) {
    assert.equal(await isJournal(file(name, ...contents)), expected, name);
  }
  assert.equal(await isJournal(path.join(folder, "missing.db")), false);
  assert.equal(await isJournal(folder), false);
});

test("a commit changes the signature, and a reader's empty log does not", async () => {
  const path_ = file("run.db", firstPage("nnj1"));
  const before = await signatureOf(path_);
  writeFileSync(`${path_}-wal`, "");
  assert.equal(await signatureOf(path_), before);
  appendFileSync(`${path_}-wal`, "a commit");
  const after = await signatureOf(path_);
  assert.notEqual(after, before);
  appendFileSync(path_, "a page");
  assert.notEqual(await signatureOf(path_), after);
  await assert.rejects(signatureOf(path.join(folder, "missing.db")), /^Error: the file does not exist$/);
});
