// Journal files: how they are recognized, and whether they have changed.

import { open, stat } from "node:fs/promises";

const SQLITE = "SQLite format 3\0";
/** The offset of the application id in the first page of an SQLite file. */
const APPLICATION_ID_AT = 68;
/** The `application_id` of a journal, as in `nncdbg/journal/schema.py`: "nnj1". */
const APPLICATION_ID = 0x6e6e6a31;
/** The bytes of a write-ahead log before its first page: the headers of the log and of a frame. */
const LOG_HEADER = 32 + 24;
const FRAME_AT = 32;

/** Whether a file is a journal, by its header: the file is not opened as a database. */
export async function isJournal(file: string): Promise<boolean> {
  const header = await bytesOf(file, APPLICATION_ID_AT + 4);
  if (header?.toString("latin1", 0, SQLITE.length) !== SQLITE) {
    return false;
  }
  const id = header.readUInt32BE(APPLICATION_ID_AT);
  return id === APPLICATION_ID || (id === 0 && (await isNewJournal(file)));
}

/** Whether the first page is that of a journal in the write-ahead log: until its first process ends, only the log has it. */
async function isNewJournal(file: string): Promise<boolean> {
  const log = await bytesOf(`${file}-wal`, LOG_HEADER + APPLICATION_ID_AT + 4);
  return log?.readUInt32BE(FRAME_AT) === 1 && log.readUInt32BE(LOG_HEADER + APPLICATION_ID_AT) === APPLICATION_ID;
}

/** The first bytes of a file; undefined if it is shorter, or cannot be read. */
async function bytesOf(file: string, count: number): Promise<Buffer | undefined> {
  try {
    const handle = await open(file, "r");
    try {
      const { bytesRead, buffer } = await handle.read(Buffer.alloc(count), 0, count, 0);
      return bytesRead === count ? buffer : undefined;
    } finally {
      await handle.close();
    }
  } catch {
    return undefined;
  }
}

/** A text that changes with each commit to a journal.  A commit changes the write-ahead log, and later the file.
 * Throws if there is no file. */
export async function signatureOf(file: string): Promise<string> {
  const of = ({ size, mtimeMs }: { size: number; mtimeMs: number }) => (size ? `${size}:${mtimeMs}` : "");
  const log = await stat(`${file}-wal`).then(of, () => ""); // a reader creates an empty one
  return `${of(await stat(file).catch(missing))} ${log}`;
}

function missing(error: NodeJS.ErrnoException): never {
  throw error.code === "ENOENT" ? new Error("the file does not exist") : error;
}
