// How the server is reached: a process of the chosen Python for a launch, a socket for an attach;
// and what is said when it goes away in the middle of a session.

import * as vscode from "vscode";
import { ENVIRONMENT, pythonOf } from "./python";

const SERVER = ["-m", "nncdbg.terminal.main", "dap"];

/** That nncdbg is there was seen to when the configuration was resolved. */
export async function adapterDescriptor(session: vscode.DebugSession): Promise<vscode.DebugAdapterDescriptor> {
  const { request, connect } = session.configuration;
  if (request === "attach") {
    if (typeof connect?.port !== "number") {
      throw new Error('an attach configuration needs "connect": {"host": ..., "port": ...}');
    }
    return new vscode.DebugAdapterServer(connect.port, connect.host ?? "127.0.0.1");
  }
  const folder = session.workspaceFolder?.uri;
  return new vscode.DebugAdapterExecutable(await pythonOf(folder), SERVER, { cwd: folder?.fsPath, env: ENVIRONMENT });
}

/** Offers to begin again when a launched server ends without having said so.  Breakpoints are the editor's. */
export class EndWatcher implements vscode.DebugAdapterTracker {
  private expected = false;

  constructor(private readonly session: vscode.DebugSession) {}

  onWillReceiveMessage({ command }: { command?: string }): void {
    this.expected ||= command === "disconnect" || command === "terminate";
  }

  /** A program that ends says `exited` first.  Without that, somebody speaks for a server that has crashed. */
  onDidSendMessage({ event }: { event?: string }): void {
    this.expected ||= event === "exited";
    if (event === "terminated") {
      this.ended("");
    }
  }

  onExit(code: number | undefined, signal: string | undefined): void {
    this.ended(signal ? ` by ${signal}` : ` with exit code ${code ?? "unknown"}`);
  }

  private ended(how: string): void {
    if (!this.expected) {
      this.expected = true;
      void this.offerRestart(how);
    }
  }

  private async offerRestart(how: string): Promise<void> {
    const words = `nncdbg ended${how} while "${this.session.name}" was debugged. The debug console has what it said last.`;
    if ((await vscode.window.showErrorMessage(words, "Restart")) === "Restart") {
      await vscode.debug.startDebugging(this.session.workspaceFolder, this.session.configuration);
    }
  }
}
