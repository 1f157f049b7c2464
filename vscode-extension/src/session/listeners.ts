// The attach picker: listening programs of this user.  Each has a file in the state folder.

import { readdir } from "node:fs/promises";
import * as path from "node:path";
import * as vscode from "vscode";
import { isRunning } from "../environment/process";
import { readPrivate, stateFolder } from "./token";

interface Listener {
  connect: { host: string; port: number } | { socket: string };
  program: string;
}

interface ListenerRow extends vscode.QuickPickItem {
  address: string;
}

/** The address of the program that the user picks: HOST:PORT, or the path of a socket. */
export async function pickListener(): Promise<string | undefined> {
  const rows = await listenerRows();
  if (!rows.length) {
    void vscode.window.showInformationMessage("nncdbg: no program is listening. Call nncdbg.listen((\"127.0.0.1\", 5679)) in your program.");
    return undefined;
  }
  const options = { title: "Attach to a listening program", matchOnDescription: true, matchOnDetail: true };
  return (await vscode.window.showQuickPick(rows, options))?.address;
}

async function listenerRows(): Promise<ListenerRow[]> {
  const folder = path.join(stateFolder(), "listening");
  const names = await readdir(folder).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") {
      return []; // no program of this user has listened yet
    }
    throw error;
  });
  const rows = names.map(async (name) => {
    const pid = Number(/^(\d+)\.json$/.exec(name)?.[1]);
    const text = pid && isRunning(pid) ? await readPrivate(path.join(folder, name)) : undefined;
    return text ? [rowOf(pid, JSON.parse(text) as Listener)] : [];
  });
  return (await Promise.all(rows)).flat();
}

function rowOf(pid: number, { connect, program }: Listener): ListenerRow {
  const host = "host" in connect && connect.host.includes(":") ? `[${connect.host}]` : "host" in connect ? connect.host : "";
  const address = "socket" in connect ? connect.socket : `${host}:${connect.port}`;
  return { label: path.basename(program), description: `${address} · process ${pid}`, detail: path.dirname(program), address };
}
