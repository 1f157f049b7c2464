// The attach picker: programs of this user that listen, each of which has a file in the state folder.

import { readdir } from "node:fs/promises";
import * as path from "node:path";
import * as vscode from "vscode";
import { readPrivate, stateFolder } from "./token";

interface Listener {
  connect: { host: string; port: number } | { socket: string };
  program: string;
}

interface Row extends vscode.QuickPickItem {
  place: string;
}

/** The address of the program that the user picks: HOST:PORT or the path of a socket; undefined if none. */
export async function pickListener(): Promise<string | undefined> {
  const rows = await listening();
  if (!rows.length) {
    void vscode.window.showInformationMessage("nncdbg: no program is listening. Call nncdbg.listen((\"127.0.0.1\", 5679)) in your program.");
    return undefined;
  }
  const options = { title: "Attach to a listening program", matchOnDescription: true, matchOnDetail: true };
  return (await vscode.window.showQuickPick(rows, options))?.place;
}

async function listening(): Promise<Row[]> {
  const folder = path.join(stateFolder(), "listening");
  const names = await readdir(folder).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") {
      return []; // no program has listened yet
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

function rowOf(pid: number, { connect, program }: Listener): Row {
  const host = "host" in connect && connect.host.includes(":") ? `[${connect.host}]` : "host" in connect ? connect.host : "";
  const place = "socket" in connect ? connect.socket : `${host}:${connect.port}`;
  return { label: path.basename(program), description: `${place} · process ${pid}`, detail: path.dirname(program), place };
}

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false; // a process of another user would be none to attach to
  }
}
