// Private files in the user's state folder.  A server writes a token if the kernel does not report the user of a connection.

import { constants } from "node:fs";
import { open } from "node:fs/promises";
import { homedir } from "node:os";
import * as path from "node:path";

const LOOPBACK: Record<string, string[]> = { localhost: ["127.0.0.1", "::1"] };

/** The token of a server on this machine, if it has written one that only this user can read. */
export async function tokenOf(host: string, port: number): Promise<string | undefined> {
  for (const address of LOOPBACK[host] ?? [host]) {
    const name = address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`;
    const token = await readPrivate(path.join(stateFolder(), `dap-${name}.token`));
    if (token) {
      return token;
    }
  }
  return undefined;
}

export function stateFolder(): string {
  return path.join(process.env.XDG_STATE_HOME || path.join(homedir(), ".local", "state"), "nncdbg");
}

/** The text of a file that only this user can read; undefined for other files. */
export async function readPrivate(file: string): Promise<string | undefined> {
  try {
    const handle = await open(file, constants.O_RDONLY | constants.O_NOFOLLOW);
    try {
      const { uid, mode } = await handle.stat();
      return uid === process.geteuid?.() && !(mode & 0o077) ? await handle.readFile("utf8") : undefined;
    } finally {
      await handle.close();
    }
  } catch {
    return undefined; // missing, or a file of another user
  }
}
