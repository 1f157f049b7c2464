// Changes of files that the extension has read: the model of an open listing or of a session.

import * as path from "node:path";
import * as vscode from "vscode";
import { withErrorMessage } from "../session/commands";

/** ms without a change after which a file is complete. */
const SETTLED = 300;

/** Calls `changed` when a file was written, until the result is disposed. */
export function onFileChange(file: string, changed: () => void): vscode.Disposable {
  const folder = vscode.Uri.file(path.dirname(file));
  const pattern = new vscode.RelativePattern(folder, path.basename(file).replace(/[[\]{}*?]/g, "[$&]"));
  const watcher = vscode.workspace.createFileSystemWatcher(pattern, false, false, true);
  let waiting: NodeJS.Timeout | undefined;
  const settle = () => {
    clearTimeout(waiting);
    waiting = setTimeout(changed, SETTLED);
  };
  watcher.onDidChange(settle);
  watcher.onDidCreate(settle);
  return vscode.Disposable.from(watcher, { dispose: () => clearTimeout(waiting) });
}

/** Offers a restart when the model of a session has changed: the session continues with the model that it has read. */
export class ChangedModels implements vscode.Disposable {
  private readonly watched = new Map<vscode.DebugSession, { file: string; watcher: vscode.Disposable }>();
  private readonly listeners = [
    vscode.debug.onDidStartDebugSession((session) => this.begin(session)),
    vscode.debug.onDidTerminateDebugSession((session) => this.end(session)),
  ];
  private readonly ended = new vscode.EventEmitter<string>();
  /** The session of a model has ended. */
  readonly onDidEnd = this.ended.event;

  /** Whether a session has read this file. */
  isDebugged(file: string): boolean {
    return [...this.watched.values()].some((each) => each.file === file);
  }

  private begin(session: vscode.DebugSession): void {
    const { type, request, program, cwd } = session.configuration;
    if (type === "nncdbg" && request === "launch") {
      const file = path.resolve(cwd ?? session.workspaceFolder?.uri.fsPath ?? "", program);
      const watcher = onFileChange(file, () => void this.offerRestart(session, file));
      this.watched.set(session, { file, watcher });
    }
  }

  private async offerRestart(session: vscode.DebugSession, file: string): Promise<void> {
    const message = `${path.basename(file)} has changed. The session continues with the old version.`;
    if ((await vscode.window.showWarningMessage(message, "Restart")) === "Restart" && this.watched.has(session)) {
      await withErrorMessage(async () => void (await session.customRequest("restart")));
    }
  }

  private end(session: vscode.DebugSession): void {
    const { file, watcher } = this.watched.get(session) ?? {};
    watcher?.dispose();
    if (this.watched.delete(session) && file) {
      this.ended.fire(file);
    }
  }

  dispose(): void {
    [...this.listeners, ...[...this.watched.values()].map((each) => each.watcher), this.ended].forEach((each) => void each.dispose());
  }
}
