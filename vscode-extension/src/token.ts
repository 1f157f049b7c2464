// The token that a server of this user has written, where the kernel cannot name the user of a connection.

import { constants } from "node:fs";
import { open } from "node:fs/promises";
import { homedir } from "node:os";
import * as path from "node:path";

const LOOPBACK: Record<string, string[]> = { localhost: ["127.0.0.1", "::1"] };

/** The token for a server on this machine; undefined where it has written none that this user alone can read. */
export async function tokenOf(host: string, port: number): Promise<string | undefined> {
  for (const address of LOOPBACK[host] ?? [host]) {
    const name = address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`;
    const token = await read(path.join(stateFolder(), `dap-${name}.token`));
    if (token) {
      return token;
    }
  }
  return undefined;
}

function stateFolder(): string {
  return path.join(process.env.XDG_STATE_HOME || path.join(homedir(), ".local", "state"), "nncdbg");
}

async function read(file: string): Promise<string | undefined> {
  try {
    const handle = await open(file, constants.O_RDONLY | constants.O_NOFOLLOW);
    try {
      const { uid, mode } = await handle.stat();
      return uid === process.geteuid?.() && !(mode & 0o077) ? await handle.readFile("utf8") : undefined;
    } finally {
      await handle.close();
    }
  } catch {
    return undefined; // the server needs none, or is of another user
  }
}
