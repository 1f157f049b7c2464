// How the server is reached: a process of the chosen Python for a launch, a socket for an attach.

import * as vscode from "vscode";
import { pythonOf } from "./python";

const SERVER = ["-m", "nncdbg.terminal.main", "dap"];

export async function adapterDescriptor(
  session: vscode.DebugSession,
): Promise<vscode.DebugAdapterDescriptor> {
  const configuration = session.configuration;
  if (configuration.request === "attach") {
    const { host = "127.0.0.1", port } = configuration.connect ?? {};
    if (typeof port !== "number") {
      throw new Error('an attach configuration needs "connect": {"host": ..., "port": ...}');
    }
    return new vscode.DebugAdapterServer(port, host);
  }
  const folder = session.workspaceFolder?.uri.fsPath;
  return new vscode.DebugAdapterExecutable(await pythonOf(session.workspaceFolder), SERVER, { cwd: folder });
}
