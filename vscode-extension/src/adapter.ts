// How the server is reached: a process of the chosen Python for a launch, a socket for an attach.

import { execFile } from "node:child_process";
import { promisify } from "node:util";
import * as vscode from "vscode";
import { pythonOf } from "./python";

const SERVER = ["-m", "nncdbg.terminal.main", "dap"];
const VERSION = ["-c", "import nncdbg; print(nncdbg.__version__)"];
const run = promisify(execFile);

export async function adapterDescriptor(
  session: vscode.DebugSession,
): Promise<vscode.DebugAdapterDescriptor> {
  const { request, connect } = session.configuration;
  if (request === "attach") {
    if (typeof connect?.port !== "number") {
      throw new Error('an attach configuration needs "connect": {"host": ..., "port": ...}');
    }
    return new vscode.DebugAdapterServer(connect.port, connect.host ?? "127.0.0.1");
  }
  const python = await pythonOf(session.workspaceFolder);
  await checkInstalled(python);
  return new vscode.DebugAdapterExecutable(python, SERVER, { cwd: session.workspaceFolder?.uri.fsPath });
}

async function checkInstalled(python: string): Promise<void> {
  try {
    await run(python, VERSION, { timeout: 20_000 });
  } catch (error) {
    const missing = (error as NodeJS.ErrnoException).code === "ENOENT";
    const what = missing ? `there is no Python at ${python}` : `nncdbg is not installed for ${python}`;
    throw new Error(`${what}: run "pip install nncdbg" there, or set nncdbg.python to one that has it`);
  }
}
